"""Exact attention that never stores the score matrix, for NumPy, PyTorch, JAX and CuPy arrays.

`attention(q, k, v)` is the main function: it takes arrays [batch, heads, length, dim] of one of these libraries and
returns one of the same. The functions of flash_attn 2.x keep their names here, for tensors [batch, length, heads, dim].
Importing this module imports none of the array libraries; each is imported at first use.
"""

from importlib import import_module as _import_module

from . import _core
from ._arrays import Gradients, MaskSummary
from ._attention import attention, attention_backward, explain
from ._kv_cache import attention_with_cache, explain_with_cache, merge_states
from ._mask import summarize_mask
from ._page_pool import PagePool

__version__: str = _core.version()

# Names that need PyTorch, transformers or JAX -> the module that defines them, imported at first use.
_LAZY = {
    "flash_attn_func": "_flash_attn",
    "flash_attn_kvpacked_func": "_flash_attn",
    "flash_attn_qkvpacked_func": "_flash_attn",
    "flash_attn_varlen_func": "_flash_attn",
    "flash_attn_varlen_kvpacked_func": "_flash_attn",
    "flash_attn_varlen_qkvpacked_func": "_flash_attn",
    "flash_attn_with_kvcache": "_flash_attn",
    "patch_torch": "_patch",
    "unpatch_torch": "_patch",
    "register_transformers": "_transformers",
}
_LAZY_MODULES = ("flash_attn_interface", "jax")

__all__ = [
    "Gradients",
    "MaskSummary",
    "PagePool",
    "attention",
    "attention_backward",
    "attention_with_cache",
    "explain",
    "explain_with_cache",
    "info",
    "merge_states",
    "summarize_mask",
    *_LAZY,
]

info = _core.info


def __getattr__(name: str):
    if name in _LAZY_MODULES:
        return _import_module(f".{name}", __name__)
    if name in _LAZY:
        value = getattr(_import_module(f".{_LAZY[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'cuflash' has no attribute '{name}'")


def __dir__() -> list:
    return sorted({*globals(), *_LAZY, *_LAZY_MODULES})
