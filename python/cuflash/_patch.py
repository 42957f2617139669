"""Routes torch.nn.functional.scaled_dot_product_attention to cuflash, within a block or for good.

    with cuflash.patch_torch() as patch:
        model(x)
    print(patch.counts)   # {"cuflash": 12}, and the calls that went to PyTorch, by reason

cuflash computes the calls that mean the same in both libraries; all others go to PyTorch unchanged.
"""

from __future__ import annotations

import functools
import re
import threading
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional

from ._torch import attention

__all__ = ["TorchPatch", "patch_torch", "unpatch_torch"]

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor))
_CUDA_HEAD_SIZE = 256
_CUDA_CAPABILITY = (8, 0)

_lock = threading.Lock()
_patches: List["TorchPatch"] = []  # the active ones; all share one installation
_installation: Optional["_Installation"] = None


class TorchPatch:
    """An active patch, until restore() or the end of its with block. Patches nest: the last to end restores PyTorch."""

    def __init__(self) -> None:
        self.counts: Dict[str, int] = {}
        """The number of calls that went to "cuflash" and to "torch: <reason>". Calls inside torch.compile do not
        count."""

    def restore(self) -> None:
        """Ends this patch. Calling it twice is harmless."""
        with _lock:
            if self in _patches:
                _patches.remove(self)
            if not _patches:
                _uninstall()

    def __enter__(self) -> "TorchPatch":
        return self

    def __exit__(self, *_: Any) -> None:
        self.restore()


def patch_torch() -> TorchPatch:
    """Routes torch.nn.functional.scaled_dot_product_attention to cuflash, in every thread, until the patch is restored.

    This includes PyTorch's modules that call the function (nn.MultiheadAttention with need_weights=False, the layers of
    nn.Transformer in training). Code that imported the function earlier (`from torch.nn.functional import
    scaled_dot_product_attention`) keeps PyTorch's. So does the fused inference path of nn.TransformerEncoderLayer,
    which does not call the function: torch.backends.mha.set_fastpath_enabled(False) disables it.

    Returns:
        The patch: a context manager with restore() and counts.
    """
    patch = TorchPatch()
    with _lock:
        if not _patches:
            _install()
        _patches.append(patch)
    return patch


def unpatch_torch() -> None:
    """Ends every active patch."""
    with _lock:
        _patches.clear()
        _uninstall()


class _Installation:
    """The replacement function and PyTorch's original."""

    def __init__(self, original: Callable[..., Tensor]) -> None:
        self.original = original
        self.active = True

        @functools.wraps(original)
        def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = None,
                                         dropout_p: float = 0.0, is_causal: bool = False, scale: Optional[float] = None,
                                         enable_gqa: bool = False) -> Tensor:
            # Other code may have wrapped this function, and may call it after the patch has ended.
            reason = "the patch has ended"
            if self.active:
                reason = _why_not(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
                _count(reason)
            if reason is None:
                return _attention_with_torch_names(query, key, value, attn_mask, dropout_p, is_causal, scale)
            return original(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal,
                            scale=scale, enable_gqa=enable_gqa)

        self.function = scaled_dot_product_attention


def _install() -> None:
    global _installation
    _installation = _Installation(functional.scaled_dot_product_attention)
    functional.scaled_dot_product_attention = _installation.function


def _uninstall() -> None:
    global _installation
    if _installation is None:
        return
    _installation.active = False
    if functional.scaled_dot_product_attention is _installation.function:
        functional.scaled_dot_product_attention = _installation.original
    _installation = None


def _count(reason: Optional[str]) -> None:
    if torch.compiler.is_compiling():
        return
    where = "cuflash" if reason is None else f"torch: {reason}"
    with _lock:
        for patch in _patches:
            patch.counts[where] = patch.counts.get(where, 0) + 1


def _why_not(query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor], dropout_p: float, is_causal: bool,
             enable_gqa: bool) -> Optional[str]:
    """Why PyTorch computes this call; None if cuflash does. Invalid calls go to PyTorch for its own messages."""
    tensors = [tensor for tensor in (query, key, value, mask) if tensor is not None]
    return _kind(tensors) or _types(query, key, value, mask) or _shapes(query, key, value, enable_gqa) or _options(
        query, key, mask, dropout_p, is_causal)


def _kind(tensors: List[Tensor]) -> Optional[str]:
    query = tensors[0]
    device = query.get_device()  # -1 for the CPU; cheaper than .device
    for tensor in tensors:
        if type(tensor) not in _PLAIN_TYPES:
            return "a tensor subclass"
        if tensor.is_nested or tensor.layout != torch.strided:
            return "a nested or sparse tensor"
        if not (tensor.is_cpu or tensor.is_cuda) or tensor.get_device() != device:
            return "the device"
    if query.is_cuda and _capability(device) < _CUDA_CAPABILITY:
        return "the GPU is older than compute capability 8.0"
    if torch.compiler.is_compiling():
        return None
    if forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active():
        return "forward-mode differentiation or a function transform"
    return None


@functools.lru_cache(maxsize=None)
def _capability(index: int) -> Tuple[int, int]:
    return torch.cuda.get_device_capability(index)


def _types(query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor]) -> Optional[str]:
    dtype = query.dtype
    if dtype not in _DTYPES or key.dtype not in _DTYPES or value.dtype not in _DTYPES:
        return "the dtype"
    if not dtype == key.dtype == value.dtype and not torch.is_autocast_enabled(query.device.type):
        return "the dtypes differ"
    if mask is not None and mask.dtype not in (torch.bool, torch.float32, dtype):
        return "the dtype of the mask"
    return None


def _shapes(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> Optional[str]:
    q, k, v = query.shape, key.shape, value.shape
    if not (len(q) == len(k) == len(v) >= 2):
        return "the ranks"
    if q[-1] != k[-1] or k[-2] != v[-2] or q[-1] == 0 or v[-1] == 0:
        return "the shapes"
    if query.is_cuda and max(q[-1], v[-1]) > _CUDA_HEAD_SIZE:
        return f"a head size above {_CUDA_HEAD_SIZE}"
    if len(q) == 2:
        return None
    for a, b, c in zip(q[:-3], k[:-3], v[:-3]):
        if (a != b and a != 1 and b != 1) or (b != c and b != 1 and c != 1) or (a != c and a != 1 and c != 1):
            return "the shapes"
    grouped = enable_gqa and k[-3] > 0 and q[-3] % k[-3] == 0
    if k[-3] != v[-3] or not (q[-3] == k[-3] or k[-3] == 1 or grouped):
        return "the numbers of heads"
    return None


def _options(query: Tensor, key: Tensor, mask: Optional[Tensor], dropout_p: float, is_causal: bool) -> Optional[str]:
    if not 0 <= dropout_p < 1:
        return "dropout_p"
    if mask is None:
        return None
    if is_causal:
        return "a mask with is_causal"
    if not 2 <= mask.dim() <= query.dim():
        return "the rank of the mask"
    whole = (*query.shape[:-1], key.shape[-2])
    if any(extent not in (1, full) for extent, full in zip(reversed(mask.shape), reversed(whole))):
        return "the shape of the mask"
    return None


_NAMES = {"q": "query", "k": "key", "v": "value", "mask": "attn_mask", "bias": "attn_mask"}


def _attention_with_torch_names(*arguments: Any) -> Tensor:
    """If cuflash still refuses the call, the message uses the argument names of PyTorch's function."""
    if torch.compiler.is_compiling():
        return _attention(*arguments)
    try:
        return _attention(*arguments)
    except ValueError as error:
        text = re.sub(r"^\w+(?=:)", lambda name: _NAMES.get(name.group(), name.group()), str(error))
        if text == str(error):
            raise
        raise ValueError(text) from None


def _attention(query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor], dropout_p: float, is_causal: bool,
               scale: Optional[float]) -> Tensor:
    """[..., H, S, D] as [B, H, S, D], without a copy if strides allow it. PyTorch's causal mask is top-left."""
    options = {"causal": is_causal, "top_left": is_causal, "scale": scale, "dropout_p": dropout_p}
    if mask is not None:
        if mask.shape[-1] == 1:
            mask = mask.expand(*mask.shape[:-1], key.shape[-2])
        options["mask" if mask.dtype == torch.bool else "bias"] = mask
    if query.dim() == 4 and query.shape[0] == key.shape[0] == value.shape[0]:  # nearly always
        return attention(query, key, value, **options)
    leading = torch.broadcast_shapes(*(tensor.shape[:-3] for tensor in (query, key, value)))
    if mask is not None and query.dim() > 4 and mask.dim() > 3:
        options["mask" if mask.dtype == torch.bool else "bias"] = _rank_four(mask, leading)
    out = attention(*(_rank_four(tensor, leading) for tensor in (query, key, value)), **options)
    return out.reshape(*leading, *out.shape[4 - min(query.dim(), 3):])


def _rank_four(tensor: Tensor, leading: torch.Size) -> Tensor:
    if tensor.dim() < 4:
        return tensor.reshape((1,) * (4 - tensor.dim()) + tensor.shape)
    return tensor.expand(*leading, *tensor.shape[-3:]).reshape(leading.numel(), *tensor.shape[-3:])
