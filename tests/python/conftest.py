"""What all Python tests share.

CUFLASH_TEST_DEVICE=cuda   run on the GPU what can run there (default: cpu)
CUFLASH_TEST_SCALE=10      ten times as many random cases (default: 1)
CUFLASH_TEST_SKIPS=FILE    where to write what was skipped: a count, a tab and a reason in each line
"""

import os
import re
from collections import Counter
from pathlib import Path

import pytest

# No test depends on what was tuned on the machine that it runs on.
os.environ.setdefault("CUFLASH_TUNED", "off")

# JAX takes three quarters of a GPU's memory when it starts, and other processes share it with the tests.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

try:
    import hypothesis
except ImportError:  # tests that draw cases then skip themselves through pytest.importorskip
    hypothesis = None

SCALE = float(os.environ.get("CUFLASH_TEST_SCALE", "1"))

if hypothesis is not None:
    # Speed is not what these tests are about, and the same cases in every run are.
    hypothesis.settings.register_profile(
        "cuflash",
        deadline=None,
        derandomize=True,
        print_blob=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.settings.load_profile("cuflash")


def examples(count: int) -> int:
    """For hypothesis.settings(max_examples=...): count at scale 1."""
    return max(1, round(count * SCALE))


def why_no_cuda() -> str:
    """Why tests cannot run on a GPU; "" where they can."""
    try:
        import torch
    except ImportError:
        return "PyTorch, which makes the tensors on the GPU, is not installed"
    return "" if torch.cuda.is_available() else "PyTorch sees no GPU"


@pytest.fixture(scope="session")
def device() -> str:
    """ "cpu" or "cuda": where a test that can run on both runs."""
    name = os.environ.get("CUFLASH_TEST_DEVICE", "cpu")
    if name not in ("cpu", "cuda"):
        pytest.fail(f"CUFLASH_TEST_DEVICE is {name}; it must be cpu or cuda")
    if name == "cuda" and why_no_cuda():
        pytest.skip(f"CUFLASH_TEST_DEVICE=cuda, but {why_no_cuda()}")
    return name


@pytest.fixture
def cuda() -> str:
    """For tests that only a GPU can run."""
    if os.environ.get("CUFLASH_TEST_DEVICE") != "cuda":
        pytest.skip("needs a GPU: set CUFLASH_TEST_DEVICE=cuda on a machine that has one (make gpu-test does)")
    if why_no_cuda():
        pytest.skip(f"needs a GPU, and {why_no_cuda()}")
    return "cuda"


# As pytest.importorskip words it; the module's name for a user is the project's.
_NO_MODULE = re.compile(r"could not import '(\w+)[^']*': .*")
_PROJECTS = {"torch": "PyTorch"}


def skips_by_reason(reports) -> Counter:
    """{reason: how often}. A file that skips itself is one report, however many tests it has, and is counted as such."""
    found = Counter()
    for report in reports:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ").splitlines()[0]
        missing = _NO_MODULE.fullmatch(reason)
        if missing:
            reason = f"{_PROJECTS.get(missing.group(1), missing.group(1))} is not installed"
        found[reason if report.when == "call" or report.when == "setup" else f"{reason} (whole files)"] += 1
    return found


def pytest_terminal_summary(terminalreporter) -> None:
    """Writes what tools/skips.py prints at the end of tools/python_test.sh and of .ci/run."""
    path = os.environ.get("CUFLASH_TEST_SKIPS")
    if path:
        found = skips_by_reason(terminalreporter.stats.get("skipped", []))
        Path(path).write_text("".join(f"{count}\t{reason}\n" for reason, count in sorted(found.items())))
