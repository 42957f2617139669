"""The package as a whole: what it imports, its size, its stubs, its self-check."""

import ast
import io
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import cuflash
from cuflash import _core

PACKAGE = Path(cuflash.__file__).parent


def python(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )


def test_importing_needs_no_framework():
    """A call with NumPy arrays does not import a framework either."""
    code = """
import sys, cuflash
frameworks = {"torch", "jax", "jaxlib", "cupy", "numpy", "transformers"}
assert not frameworks & set(sys.modules), frameworks & set(sys.modules)
import numpy
q = numpy.ones((1, 1, 2, 4), numpy.float32)
cuflash.attention(q, q, q)
assert not (frameworks - {"numpy"}) & set(sys.modules), sys.modules
"""
    result = python("-c", code)
    assert result.returncode == 0, result.stderr


def test_every_name_exists_or_says_what_is_missing():
    for name in cuflash.__all__:
        try:
            assert getattr(cuflash, name) is not None
        except ImportError as error:
            assert re.search("torch|transformers", str(error)), error
        assert name in dir(cuflash)
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        getattr(cuflash, "no_such_" + "name")


def test_a_wheel_is_small():
    """All files of the package, deflated as pip packs them."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in PACKAGE.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, file.relative_to(PACKAGE))
    assert len(archive.namelist()) > 5 and (PACKAGE / "py.typed").exists()
    assert packed.tell() < 5 * 2**20, f"{packed.tell() / 2**20:.1f} MiB"


def test_the_library_is_hidden_inside_the_module():
    """Two copies of libcuflash in one process do not share symbols."""
    found = subprocess.run(["nm", "-D", "--defined-only", _core.__file__], capture_output=True, text=True)
    if found.returncode != 0:
        pytest.skip("nm, which lists the symbols of the module, is not there")
    assert "PyInit__core" in found.stdout and "cuflash_forward" not in found.stdout


@pytest.mark.parametrize("name", ["forward", "backward", "explain_forward", "explain_backward", "attend_cache", "explain_attend_cache",
                                  "merge_states"])
def test_stubs_have_the_parameters_of_the_module(name):
    stubs = {f.name: f.args for f in ast.parse((PACKAGE / "_core.pyi").read_text()).body if hasattr(f, "args")}
    stub = stubs[name.replace("explain_", "")]
    documented = re.search(rf"{name}\((.*)\)", getattr(_core, name).__doc__).group(1)
    assert [a.arg for a in stub.args] == re.findall(r"(\w+):", documented)
    assert len(stub.defaults) == documented.count(" = ")


def test_the_self_check_passes():
    result = python("-m", "cuflash")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("passed") == 3 and f"cuflash      {cuflash.__version__}" in result.stdout


def test_the_self_check_fails_if_results_are_wrong():
    code = """
import sys
from cuflash import _core
from cuflash.__main__ import main
true_forward = _core.forward
def forward(q, k, v, out, *rest):
    true_forward(q, k, v, out, *rest)
    out *= 1.01
_core.forward = forward
sys.argv = ["cuflash"]
sys.exit(main())
"""
    result = python("-c", code)
    assert result.returncode == 1 and "FAILED: plain" in result.stdout, result.stdout + result.stderr


def test_environment_variables_reach_the_library():
    assert "CUFLASH_NUM_THREADS 1" in python("-m", "cuflash", CUFLASH_NUM_THREADS="1").stdout
