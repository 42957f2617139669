"""The Python programs of the documents run as they stand there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "docs/python.md", "docs/cache.md")


def programs():
    for document in DOCUMENTS:
        text = (ROOT / document).read_text()
        for match in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
            line = text[: match.start()].count("\n") + 2
            yield pytest.param("\n" * (line - 1) + match.group(1), document, id=f"{document}:{line}")


@pytest.mark.parametrize("code, document", list(programs()))
def test_program(code, document):
    for library in ("torch", "jax", "transformers"):
        if re.search(rf"^\s*(import|from) {library}\b", code, re.MULTILINE):
            pytest.importorskip(library)
    exec(compile(code, str(ROOT / document), "exec"), {"__name__": "__main__"})


def test_there_are_programs():
    assert {document for _, document in (p.values for p in programs())} == set(DOCUMENTS)
