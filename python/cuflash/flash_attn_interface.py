"""The module of flash_attn 2.x that has its functions: `from cuflash.flash_attn_interface import flash_attn_func`.

The code is in `_flash_attn`, because this file may be imported by another name: with `sys.modules["flash_attn"] =
cuflash` Python finds it for `flash_attn.flash_attn_interface`, and would load all that it imports once more, as modules of
`flash_attn`, which would register the operators a second time.
"""

import sys
from importlib import import_module

if __name__ == "cuflash.flash_attn_interface":
    from ._flash_attn import *  # noqa: F401, F403
    from ._flash_attn import __all__  # noqa: F401
else:
    sys.modules[__name__] = import_module("cuflash.flash_attn_interface")  # what the import statement then hands out
