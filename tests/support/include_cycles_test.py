"""Folders must not include each other in a circle.

A folder is every directory that holds C or C++ sources. Usage: include_cycles_test.py <repository>. Prints the circles and
fails if there are any.
"""

import pathlib
import re
import sys

# Where the build looks for headers, beside the folder of the file that includes one.
INCLUDE_PATHS = (".", "src", "kernels", "include", "python/src", "tests")
# Folders with sources.
ROOTS = ("src", "kernels", "include", "check", "cli", "files", "machine", "reference", "fuzz", "bench", "python/src",
         "tests", "examples")
# Subfolders of these count as the folder itself: module.cpp binds what xla/ makes, which uses the options of the module;
# the emulator's versions of PTX instructions act on its threads, which run kernels that issue them.
WHOLE = ("python/src", "tests/cuda/kernel_emulator")

INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)


def folder_of(file: pathlib.PurePath) -> str:
    for whole in WHOLE:
        if file.is_relative_to(whole):
            return whole
    return str(file.parent)


def edges(repository: pathlib.Path) -> dict[str, dict[str, str]]:
    """For each folder the folders that it includes, each with one file that does so."""
    found: dict[str, dict[str, str]] = {}
    for root in ROOTS:
        for file in sorted((repository / root).rglob("*")):
            if file.suffix not in (".h", ".cpp", ".c"):
                continue
            name = file.relative_to(repository)
            included = found.setdefault(folder_of(name), {})
            for header in INCLUDE.findall(file.read_text(encoding="utf-8")):
                for path in (name.parent, *INCLUDE_PATHS):
                    other = pathlib.PurePath(path) / header
                    if (repository / other).is_file():
                        if folder_of(other) != folder_of(name):
                            included.setdefault(folder_of(other), f"{name} includes {header}")
                        break
    return found


def circles(graph: dict[str, dict[str, str]]) -> list[list[str]]:
    """Strongly connected folders, more than one each (Tarjan)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    result: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in graph.get(node, {}):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            component = stack[stack.index(node):]
            del stack[stack.index(node):]
            if len(component) > 1:
                result.append(sorted(component))

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return result


def main(repository: str) -> int:
    graph = edges(pathlib.Path(repository))
    assert circles({"a": {"b": ""}, "b": {"c": ""}, "c": {"a": ""}, "d": {"a": ""}}) == [["a", "b", "c"]]
    assert circles({"a": {"b": "", "c": ""}, "b": {"c": ""}}) == []
    assert "kernels/tile" in graph["kernels/attn"] and "src/problem" in graph["src/cpu"], "the folders were not found"
    found = circles(graph)
    for component in found:
        print("These folders include each other: " + ", ".join(component))
        for folder in component:
            for other, example in graph[folder].items():
                if other in component:
                    print(f"  {folder} -> {other}: {example}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
