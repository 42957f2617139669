"""The functions of flash_attn 2.x, in a module of the name they have there.

The code is in `_flash_attn`, because this file may be imported under another name. With `sys.modules["flash_attn"] =
cuflash`, Python finds it for `flash_attn.flash_attn_interface`; its relative imports would then load everything once
more, as modules of `flash_attn`, and register the operators a second time.
"""

import sys
from importlib import import_module

if __name__ == "cuflash.flash_attn_interface":
    from ._flash_attn import *  # noqa: F401, F403
    from ._flash_attn import __all__  # noqa: F401
else:
    sys.modules[__name__] = import_module("cuflash.flash_attn_interface")  # the import statement returns this
