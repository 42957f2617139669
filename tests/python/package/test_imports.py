"""Modules of the package import each other without a cycle.

An import is an edge of the graph wherever it is written: one inside a function, which defers an optional library such
as PyTorch, counts like any other, and so do the names that cuflash/__init__.py imports at first use. Only modules of the
package are nodes; the optional libraries are not. Python imports a package before each of its modules: that implicit
import is not an edge, but naming the package (`import cuflash`, `from . import info`) is.
"""

import ast
from pathlib import Path

import cuflash

PACKAGE = Path(cuflash.__file__).parent
FILES = {file.relative_to(PACKAGE): file.read_text() for file in PACKAGE.rglob("*.py")}


def name_of(file):
    parts = ["cuflash", *file.with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(file) for file in FILES} | {"cuflash._core"}


def targets_of(node, package):
    """The modules that an import statement names; package is the one that relative imports start from."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        parts = package.split(".")
        base = ".".join(parts[:len(parts) - node.level + 1]) if node.level else ""
        base = ".".join(part for part in (base, node.module) if part)
        submodules = [f"{base}.{alias.name}" for alias in node.names]
        return [name if name in MODULES else base for name in submodules]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        name = node.args[0]
        return [name.value] if isinstance(name, ast.Constant) else []
    return []


def graph_of(sources):
    """{module: the modules of the package that it imports}"""
    graph = {}
    for file, text in sources.items():
        module = name_of(file)
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        found = {target for node in ast.walk(ast.parse(text)) for target in targets_of(node, package)}
        graph[module] = sorted(found & MODULES - {module})  # flash_attn_interface may name itself
    return graph


def cycle_in(graph):
    """A list of modules that begins and ends with the same one; None if there is no cycle."""
    finished = set()

    def visit(module, path):
        if module in path:
            return [*path[path.index(module):], module]
        if module in finished:
            return None
        for target in graph.get(module, ()):
            found = visit(target, [*path, module])
            if found:
                return found
        finished.add(module)
        return None

    return next((found for module in sorted(graph) if (found := visit(module, []))), None)


def graph_of_package():
    graph = graph_of(FILES)
    lazy = {*cuflash._LAZY.values(), *cuflash._LAZY_MODULES}
    graph["cuflash"] = sorted({*graph["cuflash"], *(f"cuflash.{name}" for name in lazy)})
    return graph


def test_no_cycle():
    cycle = cycle_in(graph_of_package())
    assert cycle is None, " -> ".join(cycle)


def test_the_graph_sees_every_kind_of_import():
    graph = graph_of_package()
    assert "cuflash._torch" in graph["cuflash._attention"]  # inside a function
    assert "cuflash._torch.eager" in graph["cuflash._torch.call"]  # from one module to its sibling
    assert "cuflash._core" in graph["cuflash._torch.kv_cache"]  # from the parent package
    assert "cuflash" in graph["cuflash.bench.problem"]  # the package itself
    assert {"cuflash.jax", "cuflash._flash_attn"} <= set(graph["cuflash"])  # at first use
    assert graph["cuflash._arrays"] == graph["cuflash._values"] == []


def test_a_cycle_is_found():
    sources = {Path("_arrays.py"): "def f():\n    from ._numpy import g", Path("_numpy.py"): "from . import _values",
               Path("_values.py"): "import cuflash._arrays"}
    assert cycle_in(graph_of(sources)) == ["cuflash._arrays", "cuflash._numpy", "cuflash._values", "cuflash._arrays"]
