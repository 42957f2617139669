"""Attention over a KV cache for NumPy arrays on the CPU and CuPy arrays on a GPU."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

from . import _core
from ._cached_attention import LAYOUTS, require_ranks, results_of
from ._numpy import device_of, integers, lengths_of, readable, require_array, slopes_of
from ._values import LARGEST_EXTENT, flag, layout as layout_named, number, optional_number, pair, whole

Array = Any


class CacheCall:
    """One problem in the order in which `_core` takes it. Caches are never copied: they are written in place."""

    def __init__(
        self,
        q: Array,
        k_cache: Array,
        v_cache: Array,
        k: Optional[Array],
        v: Optional[Array],
        *,
        cache_seqlens: Any = None,
        block_table: Optional[Array] = None,
        cache_batch_idx: Any = None,
        cache_leftpad: Any = None,
        rotary_cos: Optional[Array] = None,
        rotary_sin: Optional[Array] = None,
        rotary_interleaved: bool = False,
        rotary_one_position: bool = False,
        sink: Optional[Array] = None,
        alibi_slopes: Optional[Array] = None,
        causal: bool = False,
        window: Tuple[int, int] = (-1, -1),
        scale: Optional[float] = None,
        softcap: float = 0.0,
        seqlens_q: Any = None,
        cu_seqlens_q: Any = None,
        max_seqlen_q: int = 0,
        seqlens_new: Any = None,
        cu_seqlens_new: Any = None,
        max_seqlen_new: int = 0,
        layout: str = "bhsd",
        num_splits: int = 0,
        return_lse: bool = False,
        num_threads: int = 0,
    ) -> None:
        self.device = device_of(q)
        self.xp = xp = self.device.xp
        self.layout, self.return_lse = layout_named(layout, LAYOUTS), flag(return_lse, "return_lse")
        require_array(xp, k_cache, "k_cache"), require_array(xp, v_cache, "v_cache")
        require_ranks(q, k_cache, v_cache, layout)
        self.q, self.v_cache = readable(xp, q, "q"), v_cache
        cu_seqlens_q = lengths_of(xp, cu_seqlens_q, "cu_seqlens_q")
        table = integers(xp, block_table, "block_table", "pages")
        if cu_seqlens_q is not None and (cu_seqlens_q.ndim != 1 or cu_seqlens_q.size == 0):
            raise ValueError(f"cu_seqlens_q: has shape {list(cu_seqlens_q.shape)}; it is [B + 1]")
        batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
        self.inputs: List[Any] = [self.q, k_cache, v_cache, self._optional(k, "k"), self._optional(v, "v")]
        self.others: List[Any] = [
            self._cached_rows(cache_seqlens, batch, k_cache, table, appends=k is not None),
            table,
            lengths_of(xp, cache_batch_idx, "cache_batch_idx"),
            lengths_of(xp, cache_leftpad, "cache_leftpad"),
            lengths_of(xp, cu_seqlens_new, "cu_seqlens_new"),
            lengths_of(xp, seqlens_new, "seqlens_new"),
            self._optional(rotary_cos, "rotary_cos"),
            self._optional(rotary_sin, "rotary_sin"),
            slopes_of(xp, alibi_slopes),
            self._optional(sink, "sink"),
            cu_seqlens_q,
            lengths_of(xp, seqlens_q, "seqlens_q"),
            layout,
            optional_number(scale, "scale"),
            flag(causal, "causal"),
            *pair(window, "window"),
            number(softcap, "softcap"),
            whole(max_seqlen_q, "max_seqlen_q", 0, LARGEST_EXTENT),
            whole(max_seqlen_new, "max_seqlen_new", 0, LARGEST_EXTENT),
            flag(rotary_interleaved, "rotary_interleaved"),
            flag(rotary_one_position, "rotary_one_position"),
            whole(num_splits, "num_splits", 0, LARGEST_EXTENT),
            self.device.stream,
            self.device.allocate,
            whole(num_threads, "num_threads", 0, LARGEST_EXTENT),
        ]

    def _optional(self, array: Optional[Array], name: str) -> Optional[Array]:
        return None if array is None else readable(self.xp, array, name)

    def _cached_rows(self, lengths: Any, batch: int, k_cache: Array, table: Optional[Array], appends: bool) -> Array:
        if lengths is None:
            if appends:
                raise ValueError("cache_seqlens: is needed with k: rows of each sequence before the append")
            room = k_cache.shape[1 if self.layout == "bshd" else 2]
            lengths = room if table is None else room * table.shape[-1]
        if not hasattr(lengths, "__len__"):  # one for all
            lengths = self.xp.full(batch, whole(lengths, "cache_seqlens", 0, LARGEST_EXTENT), self.xp.int32)
        return lengths_of(self.xp, lengths, "cache_seqlens")

    def empty_out(self) -> Array:
        return self.xp.empty((*self.q.shape[:-1], self.v_cache.shape[-1]), self.q.dtype)

    def empty_lse(self) -> Array:
        return self.xp.empty(_lse_shape(self.q, self.layout), _lse_type(self.xp, self.q))


def _lse_shape(rows: Array, layout: str) -> Tuple[int, ...]:
    """Of queries, or of their results."""
    if rows.ndim == 3:
        return rows.shape[1], rows.shape[0]
    return (rows.shape[0], rows.shape[2], rows.shape[1]) if layout == "bshd" else rows.shape[:3]


def _lse_type(xp: Any, rows: Array) -> Any:
    return xp.float64 if rows.dtype == xp.float64 else xp.float32


def attention_with_cache(q: Array, k_cache: Array, v_cache: Array, k: Any, v: Any, **options: Any) -> Any:
    """cuflash.attention_with_cache for NumPy and CuPy arrays."""
    call = CacheCall(q, k_cache, v_cache, k, v, **options)
    with call.device.guard:
        out = call.empty_out()
        lse = call.empty_lse() if call.return_lse else None
        _core.attend_cache(*call.inputs, out, lse, *call.others)
    return (out, lse) if call.return_lse else out


def explain_with_cache(q: Array, k_cache: Array, v_cache: Array, k: Any, v: Any, **options: Any) -> str:
    """cuflash.explain_with_cache for NumPy and CuPy arrays."""
    call = CacheCall(q, k_cache, v_cache, k, v, **options)
    with call.device.guard:
        lse = call.empty_lse() if call.return_lse else None
        return _core.explain_attend_cache(*call.inputs, call.empty_out(), lse, *call.others)


def merge_states(
    o_a: Array,
    lse_a: Array,
    o_b: Array,
    lse_b: Array,
    out: Optional[Tuple[Array, Array]],
    *,
    layout: str,
    num_threads: int,
) -> Tuple[Array, Array]:
    """cuflash.merge_states for NumPy and CuPy arrays."""
    device = device_of(o_a)
    xp = device.xp
    layout_named(layout, LAYOUTS)
    num_threads = whole(num_threads, "num_threads", 0, LARGEST_EXTENT)
    named = {"o_a": o_a, "lse_a": lse_a, "o_b": o_b, "lse_b": lse_b}
    parts = [readable(xp, array, name, like="o_a") for name, array in named.items()]
    with device.guard:
        if out is None:
            out = xp.empty(o_a.shape, o_a.dtype), xp.empty(_lse_shape(o_a, layout), _lse_type(xp, o_a))
        o, lse = results_of(out)
        require_array(xp, o, "out", "o_a"), require_array(xp, lse, "out", "o_a")
        _core.merge_states(*parts, o, lse, layout, device.stream, num_threads)
    return o, lse
