"""Attention over a KV cache for NumPy arrays on the CPU and CuPy arrays on a GPU."""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Tuple

from . import _core
from ._arrays import Array
from ._kv_arguments import LAYOUTS, require_batch, require_ranks, results_of
from ._numpy import device_of, integers, lengths_of, lse_type, readable, require_array, slopes_of
from ._options import CACHE_ARRAYS, CACHE_EXECUTION, CACHE_OPTIONS, checker, keywords, require_known
from ._values import count, flag
from ._values import layout as layout_named

_KEYWORDS = keywords(CACHE_ARRAYS, (*CACHE_OPTIONS, *CACHE_EXECUTION))
_checked = checker((*CACHE_OPTIONS, *CACHE_EXECUTION))


def _optional(xp: Any, array: Optional[Array], name: str) -> Optional[Array]:
    return None if array is None else readable(xp, array, name)


# The conversion of each array other than cache_seqlens.
_CONVERSIONS = {
    "block_table": lambda xp, table, name: integers(xp, table, name, "pages"),
    "cache_batch_idx": lengths_of,
    "cache_leftpad": lengths_of,
    "cu_seqlens_new": lengths_of,
    "seqlens_new": lengths_of,
    "rotary_cos": _optional,
    "rotary_sin": _optional,
    "alibi_slopes": lambda xp, slopes, name: slopes_of(xp, slopes),
    "sink": _optional,
    "cu_seqlens_q": lengths_of,
    "seqlens_q": lengths_of,
}


class CacheCall:
    """One call in the form that `_core` takes. Caches are never copied: the library writes to them in place.

    given: keyword arguments of cuflash.attention_with_cache."""

    def __init__(self, q: Array, k_cache: Array, v_cache: Array, k: Optional[Array], v: Optional[Array],
                 given: Mapping[str, Any]) -> None:
        self.device = device_of(q)
        self.xp = xp = self.device.xp
        get = given.get
        self.layout = layout_named(get("layout", "bhsd"), LAYOUTS)
        self.return_lse = flag(get("return_lse"), "return_lse")
        require_array(xp, k_cache, "k_cache"), require_array(xp, v_cache, "v_cache")
        require_ranks(q, k_cache, v_cache, self.layout)
        self.q, self.v_cache = readable(xp, q, "q"), v_cache
        self.inputs: List[Any] = [self.q, k_cache, v_cache, _optional(xp, k, "k"), _optional(xp, v, "v")]
        arrays = {name: convert(xp, get(name), name) for name, convert in _CONVERSIONS.items()}
        cu_seqlens_q, block_table = arrays["cu_seqlens_q"], arrays["block_table"]
        require_batch(cu_seqlens_q, block_table)
        batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
        arrays["cache_seqlens"] = self._cached_rows(get("cache_seqlens"), batch, k_cache, block_table,
                                                    appends=k is not None)
        *options, num_threads = _checked(given).values()
        self.others: List[Any] = [
            *[arrays[name] for name in CACHE_ARRAYS],
            *options,
            self.device.stream,
            self.device.allocate,
            num_threads,
        ]

    def _cached_rows(self, lengths: Any, batch: int, k_cache: Array, table: Optional[Array], appends: bool) -> Array:
        if lengths is None:
            if appends:
                raise ValueError("cache_seqlens: is needed with k: rows of each sequence before the append")
            room = k_cache.shape[1 if self.layout == "bshd" else 2]
            lengths = room if table is None else room * table.shape[-1]
        if not hasattr(lengths, "__len__"):  # one length for all sequences
            lengths = self.xp.full(batch, count(lengths, "cache_seqlens"), self.xp.int32)
        return lengths_of(self.xp, lengths, "cache_seqlens")

    def empty_out(self) -> Array:
        return self.xp.empty((*self.q.shape[:-1], self.v_cache.shape[-1]), self.q.dtype)

    def empty_lse(self) -> Array:
        return self.xp.empty(_lse_shape(self.q, self.layout), lse_type(self.xp, self.q))


def _lse_shape(rows: Array, layout: str) -> Tuple[int, ...]:
    """The shape of lse for these queries or results."""
    if rows.ndim == 3:
        return rows.shape[1], rows.shape[0]
    return (rows.shape[0], rows.shape[2], rows.shape[1]) if layout == "bshd" else rows.shape[:3]


def attention_with_cache(q: Array, k_cache: Array, v_cache: Array, k: Any, v: Any, **options: Any) -> Any:
    """cuflash.attention_with_cache for NumPy and CuPy arrays."""
    call = CacheCall(q, k_cache, v_cache, k, v, options)
    with call.device.guard:
        out = call.empty_out()
        lse = call.empty_lse() if call.return_lse else None
        _core.attend_cache(*call.inputs, out, lse, *call.others)
    return (out, lse) if call.return_lse else out


def explain_with_cache(q: Array, k_cache: Array, v_cache: Array, k: Any, v: Any, **options: Any) -> str:
    """cuflash.explain_with_cache for NumPy and CuPy arrays."""
    require_known(options, _KEYWORDS, "explain_with_cache")
    call = CacheCall(q, k_cache, v_cache, k, v, options)
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
    num_threads = count(num_threads, "num_threads")
    named = {"o_a": o_a, "lse_a": lse_a, "o_b": o_b, "lse_b": lse_b}
    parts = [readable(xp, array, name, like="o_a") for name, array in named.items()]
    with device.guard:
        if out is None:
            out = xp.empty(o_a.shape, o_a.dtype), xp.empty(_lse_shape(o_a, layout), lse_type(xp, o_a))
        o, lse = results_of(out)
        require_array(xp, o, "out", "o_a"), require_array(xp, lse, "out", "o_a")
        _core.merge_states(*parts, o, lse, layout, device.stream, num_threads)
    return o, lse
