"""The Python programs in the documents run unchanged in an empty folder and print what the documents show."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "tools"))
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


def missing_module(error):
    """The missing module whose import failed, directly or in an imported module; None for other errors."""
    while error is not None:
        name = (getattr(error, "name", None) or "").partition(".")[0]
        if isinstance(error, ImportError) and name and importlib.util.find_spec(name) is None:
            return name
        error = error.__cause__ or error.__context__
    return None


def run(block):
    """Runs the program in this process, and skips the test if it needs a module that is not installed.

    What a program needs is what its run imports: cuflash imports PyTorch only when a name that needs it is used, so that
    the text of a program does not say it. What the program enters in sys.modules is taken out again."""
    code = "\n" * (block.line - 1) + block.text
    before = dict(sys.modules)
    try:
        exec(compile(code, str(ROOT / block.document), "exec"), {"__name__": "__main__"})
    except Exception as error:
        missing = missing_module(error)
        if missing is None:
            raise
        pytest.skip(f"could not import '{missing}': No module named '{missing}'")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "flash_attn"]:
            del sys.modules[name]
            if name in before:
                sys.modules[name] = before[name]


@pytest.mark.parametrize("block, output", list(programs()))
def test_program(block, output, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(block)
    if output is not None:
        assert matches(output, capsys.readouterr().out)


def test_there_are_programs():
    found = {block.document for block, _ in (p.values for p in programs())}
    assert found >= {"README.md", "docs/python.md", "docs/cache.md", "docs/guide.md"}


HIDDEN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
for library in ("torch", "jax", "matplotlib", "transformers"):
    sys.modules[library] = None  # as if it were not installed
import pytest
import test_docs
skipped = failed = 0
for name, block in sorted((p.id, p.values[0]) for p in test_docs.programs()):
    try:
        test_docs.run(block)
    except pytest.skip.Exception:
        skipped += 1
    except Exception as error:
        failed += 1
        print(name, type(error).__name__, error)
print(skipped, "skipped", failed, "failed")
"""


def test_programs_that_need_what_is_not_installed_are_skipped(tmp_path):
    """A program is also skipped if its text does not show the need, such as a name of cuflash that needs PyTorch."""
    result = subprocess.run([sys.executable, "-c", HIDDEN, str(Path(__file__).parent)], cwd=tmp_path,
                            capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    skipped, _, failed, _ = result.stdout.split()[-4:]
    assert int(failed) == 0 and int(skipped) >= 5, result.stdout


def test_other_errors_are_no_reason_to_skip():
    assert missing_module(ImportError("cannot import name 'x' from 'os'", name="os")) is None
    assert missing_module(ValueError("torch")) is None
    nested = ImportError("register_transformers() needs transformers 4.53 or newer")
    nested.__cause__ = ModuleNotFoundError("No module named 'no_such_module'", name="no_such_module.part")
    assert missing_module(nested) == "no_such_module"
