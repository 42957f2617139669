"""Summaries of masks: made once, read in place of the mask by forward, backward and every layer."""

from __future__ import annotations

import sys
from typing import Any, Tuple

from . import _core
from ._arrays import Array, MaskSummary, library_of
from ._values import count


def summarize_mask(mask: Array, *, num_threads: int = 0) -> MaskSummary:
    """The summary of a mask: a bit for each pair, and which blocks of it are hidden or visible as a whole.

    Attention with a mask skips what the mask hides, but every call first reads the whole mask. A call that gets the
    summary instead does not, so make it once if layers or steps share a mask. Later changes of the mask do not change
    its summary.

    Args:
        mask: bool, [..., Sk] with up to four dimensions that broadcast to [B, Hq, Sq, Sk], of NumPy, CuPy or PyTorch.
            Repeated dimensions (of size 1, or expanded) stay small in the summary.
        num_threads: on the CPU; 0 uses every core this process may use.

    Returns:
        A MaskSummary, to be given as `mask`.
    """
    library = library_of(mask, "mask")
    if library == "jax":
        raise TypeError("mask: is an array of jax, whose calls take the mask itself")
    if not 1 <= mask.ndim <= 4:
        raise ValueError(f"mask: has {mask.ndim} dimensions; it must broadcast to [batch, heads, queries, keys]")
    mask = mask[(None,) * (4 - mask.ndim)]
    threads = count(num_threads, "num_threads")
    return (_of_torch if library == "torch" else _of_numpy)(mask, threads)


def _shape(mask: Array, strides: Any) -> Tuple[int, int, int, int]:
    """The shape of the mask, with 1 for every dimension along which it repeats."""
    batch, heads, rows = (min(1, n) if stride == 0 else n for n, stride in zip(mask.shape[:3], strides))
    return batch, heads, rows, mask.shape[3]


def _of_torch(mask: Any, num_threads: int) -> MaskSummary:
    import torch

    from ._torch import call

    with torch.no_grad():
        mask = call.rows(mask)
        shape = _shape(mask, mask.stride())
        words = torch.empty(_core.summary_shape(*shape), dtype=torch.int32, device=mask.device)
        stream, _, threads, _, _ = call.runtime(mask, (num_threads, False))
        _core.summarize_mask(mask, words, stream, threads)
    return MaskSummary(words, shape)


def _of_numpy(mask: Any, num_threads: int) -> MaskSummary:
    from ._numpy import device_of, readable

    device = device_of(mask)
    with device.guard:
        mask = readable(device.xp, mask, "mask", "mask")
        shape = _shape(mask, mask.strides)
        words = _aligned_words(device.xp, _core.summary_shape(*shape))
        _core.summarize_mask(mask, words, device.stream, num_threads)
    return MaskSummary(words, shape)


def _aligned_words(xp: Any, shape: Tuple[int, ...]) -> Array:
    """Memory for words, aligned to the 64 bytes in which the library reads them; NumPy only aligns to 16."""
    if xp is not sys.modules.get("numpy"):
        return xp.empty(shape, xp.int32)
    size = int(xp.prod(shape))
    memory = xp.empty(size + 16, xp.int32)
    first = -memory.ctypes.data % 64 // 4
    return memory[first:first + size].reshape(shape)
