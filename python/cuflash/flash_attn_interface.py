"""The module of flash_attn 2.x that has its functions: `from cuflash.flash_attn_interface import flash_attn_func`.

The code is in `_flash_attn`, and this module may be imported by another name: after `sys.modules["flash_attn"] = cuflash`
Python finds this file for `flash_attn.flash_attn_interface`, and would run all modules below it once more by such names.
"""

import sys
from importlib import import_module

if __name__ == "cuflash.flash_attn_interface":
    from ._flash_attn import *  # noqa: F401, F403
    from ._flash_attn import __all__  # noqa: F401
else:
    sys.modules[__name__] = import_module("cuflash.flash_attn_interface")  # what the import statement then hands out
