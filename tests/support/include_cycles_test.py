"""Folders of src/ must not include each other in a circle.

A folder is every directory below src/ that holds sources; src/ itself, with the headers that all use, is one, too. Usage:
include_cycles_test.py <repository>. Prints the circles and fails if there are any.
"""

import pathlib
import re
import sys

# Subfolders of these count as the folder itself: forward takes the decode path of cpu/kv, and cpu/kv takes forward.
WHOLE = ("cpu",)

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def folder_of(path: pathlib.PurePath) -> str:
    first = path.parts[0]
    return first if first in WHOLE else str(path.parent)


def edges(src: pathlib.Path) -> dict[str, dict[str, str]]:
    """The folders that each folder includes, each with one file that does so."""
    found: dict[str, dict[str, str]] = {}
    for file in sorted(src.rglob("*")):
        if file.suffix not in (".h", ".cpp"):
            continue
        folder = folder_of(file.relative_to(src))
        included = found.setdefault(folder, {})
        for name in INCLUDE.findall(file.read_text(encoding="utf-8")):
            # Headers of kernels/ and include/ are not in src/.
            if (src / name).is_file():
                other = folder_of(pathlib.PurePath(name))
                if other != folder:
                    included.setdefault(other, f"{file.relative_to(src)} includes {name}")
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
    graph = edges(pathlib.Path(repository) / "src")
    assert circles({"a": {"b": ""}, "b": {"c": ""}, "c": {"a": ""}, "d": {"a": ""}}) == [["a", "b", "c"]]
    assert circles({"a": {"b": "", "c": ""}, "b": {"c": ""}}) == []
    assert len(graph) > 5, "src/ was not found"
    found = circles(graph)
    for component in found:
        print("These folders of src/ include each other: " + ", ".join(component))
        for folder in component:
            for other, example in graph[folder].items():
                if other in component:
                    print(f"  {folder} -> {other}: {example}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
