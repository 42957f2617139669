"""sys.modules["flash_attn"] = cuflash, followed by every form of import in code written for flash_attn."""

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

ALIAS = "import sys, cuflash; sys.modules['flash_attn'] = cuflash\n"
FORMS = {
    "from the package": "from flash_attn import flash_attn_func as f",
    "from the module": "from flash_attn.flash_attn_interface import flash_attn_func as f",
    "the module": "import flash_attn.flash_attn_interface\nf = flash_attn.flash_attn_interface.flash_attn_func",
    "the module, as": "import flash_attn.flash_attn_interface as m\nf = m.flash_attn_func",
    "module from package": "from flash_attn import flash_attn_interface\nf = flash_attn_interface.flash_attn_func",
    "import_module": "import importlib\nf = importlib.import_module('flash_attn.flash_attn_interface').flash_attn_func",
    "star": "from flash_attn.flash_attn_interface import *\nf = flash_attn_func",
    "both": "from flash_attn import flash_attn_varlen_func\n"
            "from flash_attn.flash_attn_interface import flash_attn_func as f, flash_attn_varlen_func as g\n"
            "assert flash_attn_varlen_func is g",
    "after use": "import torch\nx = torch.zeros(1, 2, 1, 8)\ncuflash.flash_attn_func(x, x, x)\n"
                 "from flash_attn.flash_attn_interface import flash_attn_func as f",
}
CHECK = """
import torch
assert f is cuflash.flash_attn_func is cuflash.flash_attn_interface.flash_attn_func
import cuflash.flash_attn_interface as here, flash_attn.flash_attn_interface as there
assert here is there and here.__name__ == "cuflash.flash_attn_interface"
assert not [name for name in sys.modules if name.startswith("flash_attn.") and name != "flash_attn.flash_attn_interface"]
x = torch.randn(1, 4, 2, 8, requires_grad=True)
f(x, x, x, causal=True).sum().backward()
"""


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.parametrize("first", ["from the module", "after use"])
def test_imports(first):
    """Runs every form in one process that forgets the name in between; `first` meets the package unused."""
    forget = "\nfor name in [n for n in sys.modules if n.startswith('flash_attn')]: del sys.modules[name]\n"
    programs = [ALIAS + FORMS[form] + CHECK for form in (first, *FORMS)]
    result = run(forget.join(programs))
    assert result.returncode == 0, result.stderr


def test_other_modules_of_flash_attn_are_not_there():
    result = run(ALIAS + "import importlib.util as u\nprint(u.find_spec('flash_attn.bert_padding'), "
                         "u.find_spec('flash_attn.flash_attn_interface') is not None)\nimport flash_attn.bert_padding")
    assert result.stdout == "None True\n"
    assert "ModuleNotFoundError: No module named 'flash_attn.bert_padding'" in result.stderr
