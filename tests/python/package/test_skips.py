"""tools/skips.py: the last lines of make python-test and of .ci/run, about tests that did not run."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from skip_reasons import skips_by_reason

TOOL = Path(__file__).parents[3] / "tools" / "skips.py"

CTEST_LOG = """Start testing: Jan 01 00:00 UTC
1/4 Testing: memory_test
[==========] Running 3 tests from 1 test suite.
[ RUN      ] ExtraMemory.Forward
/home/me/cuflash/tests/memory_test.cpp:103: Skipped
a sanitizer's own memory hides that of the call

[  SKIPPED ] ExtraMemory.Forward (0 ms)
[ RUN      ] ExtraMemory.Backward
/home/me/cuflash/tests/memory_test.cpp:114: Skipped
a sanitizer's own memory hides that of the call

[  SKIPPED ] ExtraMemory.Backward (0 ms)
[ RUN      ] ExtraMemory.Fine
[       OK ] ExtraMemory.Fine (2 ms)
[  SKIPPED ] 2 tests, listed below:
[  SKIPPED ] ExtraMemory.Forward
[  SKIPPED ] ExtraMemory.Backward
----------------------------------------------------------
2/4 Testing: threads_test
[ RUN      ] Threads.Fork
/home/me/cuflash/tests/threads_test.cpp:195: Skipped
ThreadSanitizer does not let a forked child
start threads

[  SKIPPED ] Threads.Fork (1 ms)
[ RUN      ] Threads.Plain
tests/cpu/threads/threads_test.cpp:200: Skipped

[  SKIPPED ] Threads.Plain (1 ms)
Unable to find executable: /nowhere/gone_test
3/4 Testing: gone_test
4/4 Testing: gpu_test
no GPU for this test: there is no driver
----------------------------------------------------------
Test Pass Reason:
Skip regular expression found in output. Regex=[no GPU for this test]
"""


def printed(name, path):
    result = subprocess.run([sys.executable, str(TOOL), name, str(path)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_reasons_of_gtest_are_counted(tmp_path):
    log = tmp_path / "LastTest.log"
    log.write_text(CTEST_LOG)
    assert printed("asan", log) == [
        "asan         6 skipped",
        "asan         2   a sanitizer's own memory hides that of the call",
        "asan         1   ThreadSanitizer does not let a forked child start threads",
        "asan         1   ctest found no program for it",
        "asan         1   no GPU for this test: there is no driver",
        "asan         1   no reason given",
    ]


def test_reasons_of_pytest_are_counted(tmp_path):
    path = tmp_path / "python-test.skips"
    path.write_text("3\tneeds a GPU\n1\tPyTorch is not installed\n3\tit rains\n")
    assert printed("python", path) == ["python       7 skipped", "python       3   it rains",
                                       "python       3   needs a GPU", "python       1   PyTorch is not installed"]
    path.write_text("")
    assert printed("python", path) == ["python       0 skipped: every test ran"]
    assert "there is no" in printed("python", tmp_path / "nothing.skips")[0]


def test_reports_of_pytest_become_reasons():
    def report(when, reason):
        return SimpleNamespace(when=when, longrepr=("file.py", 3, f"Skipped: {reason}"))

    found = skips_by_reason([
        report("setup", "needs a GPU"), report("call", "could not import 'torch': No module named 'torch'"),
        report("call", "PyTorch is not installed"), report("collect", "could not import 'jax.ffi': No module named 'jax'"),
    ])
    assert found == {"needs a GPU": 1, "PyTorch is not installed": 2, "jax is not installed (whole files)": 1}
