"""Checks of a call over a KV cache that every implementation makes before it allocates results."""

from __future__ import annotations

from typing import Any, Tuple

from ._arrays import Array
from ._values import shown

LAYOUTS = ("bhsd", "bshd")


def require_ranks(q: Array, k_cache: Array, v_cache: Array, layout: str) -> None:
    """The shapes of the results follow from these, before the library checks everything else."""
    if q.ndim not in (3, 4):
        raise ValueError(f"q: has {q.ndim} dimensions; it must have 4, or 3 if it is packed")
    order = "rows, heads" if layout == "bshd" else "heads, rows"
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.ndim != 4:
            raise ValueError(f"{name}: has {cache.ndim} dimensions; a cache has 4: entries or pages, {order}, head size")


def require_batch(cu_seqlens_q: Any, block_table: Any) -> None:
    """Both, where they are given, have the dimensions from which the batch size is read."""
    if cu_seqlens_q is not None and (cu_seqlens_q.ndim != 1 or cu_seqlens_q.shape[0] == 0):
        raise ValueError(f"cu_seqlens_q: has shape {list(cu_seqlens_q.shape)}; it must be [B + 1]")
    if block_table is not None and block_table.ndim != 2:
        raise ValueError(f"block_table: has shape {list(block_table.shape)}; it must be [B, max_pages]")


def results_of(out: Any) -> Tuple[Array, Array]:
    """The two arrays that merge_states writes into."""
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise TypeError(f"out: got {shown(out)}, must be two arrays (o, lse), or None for new ones")
    return out[0], out[1]
