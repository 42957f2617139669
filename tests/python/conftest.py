"""Fixtures and settings that all Python tests share.

The folders mirror the package: core/ is the extension module and NumPy, torch/, jax/ and flash_attn/ are those
interfaces, kv/ is the KV cache, package/ is everything about the package as a whole. helpers/ holds the modules that
tests import; pyproject.toml puts it on sys.path.

CUFLASH_TEST_DEVICE=cuda   run everything that can on the GPU (default: cpu)
CUFLASH_TEST_SCALE=10      draw ten times as many random cases (default: 1)
CUFLASH_TEST_SKIPS=FILE    write there what was skipped: a count, a tab and a reason on each line
"""

import gc
import os
from pathlib import Path

import pytest
from skip_reasons import skips_by_reason

# No test may depend on choices that were tuned on this machine.
os.environ.setdefault("CUFLASH_TUNED", "off")

# By default JAX reserves three quarters of the GPU's memory at start; other processes share it with the tests.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

try:
    import hypothesis
except ImportError:  # tests that draw cases then skip themselves through pytest.importorskip
    hypothesis = None

if hypothesis is not None:
    # Speed does not matter here; drawing the same cases in every run does.
    hypothesis.settings.register_profile(
        "cuflash",
        deadline=None,
        derandomize=True,
        print_blob=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.settings.load_profile("cuflash")


def why_no_cuda() -> str:
    """Why tests cannot run on a GPU; "" if they can."""
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
    """Skips tests that need a GPU if there is none."""
    if os.environ.get("CUFLASH_TEST_DEVICE") != "cuda":
        pytest.skip("needs a GPU: set CUFLASH_TEST_DEVICE=cuda on a machine that has one (make gpu-test does)")
    if why_no_cuda():
        pytest.skip(f"needs a GPU, and {why_no_cuda()}")
    return "cuda"


def pytest_collection_finish() -> None:
    """Keeps garbage collections from visiting what the imports of the tests have made: with PyTorch and JAX that takes
    0.3 s each time."""
    gc.freeze()


def pytest_terminal_summary(terminalreporter) -> None:
    """Writes the file that tools/skips.py prints at the end of tools/python_test.sh and of .ci/run."""
    path = os.environ.get("CUFLASH_TEST_SKIPS")
    if path:
        found = skips_by_reason(terminalreporter.stats.get("skipped", []))
        Path(path).write_text("".join(f"{count}\t{reason}\n" for reason, count in sorted(found.items())))
