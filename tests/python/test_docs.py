"""The Python programs of the documents run as they stand there, in an empty folder, and print what the documents say."""

import os
import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from docs_blocks import ROOT, blocks_of, documents, matches  # noqa: E402


ON_CUDA = os.environ.get("CUFLASH_TEST_DEVICE") == "cuda"


def is_run(block):
    return block.is_run or (ON_CUDA and block.marks.get("not run") == "needs a GPU")


def programs():
    for path in documents():
        blocks = blocks_of(path)
        for block, behind in zip(blocks, [*blocks[1:], None]):
            if block.language == "python" and is_run(block):
                output = behind.text if behind and "output" in behind.marks else None
                yield pytest.param(block, output, id=block.name)


@pytest.mark.parametrize("block, output", list(programs()))
def test_program(block, output, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for library in ("torch", "jax", "transformers"):
        if re.search(rf"^\s*(import|from) {library}\b", block.text, re.MULTILINE):
            pytest.importorskip(library)
    if "cuflash.plot" in block.text:
        pytest.importorskip("matplotlib")
    code = "\n" * (block.line - 1) + block.text
    exec(compile(code, str(ROOT / block.document), "exec"), {"__name__": "__main__"})
    if output is not None:
        assert matches(output, capsys.readouterr().out)


def test_there_are_programs():
    found = {block.document for block, _ in (p.values for p in programs())}
    assert found >= {"README.md", "docs/python.md", "docs/cache.md", "docs/guide.md"}
