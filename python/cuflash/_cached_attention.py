"""The front door to attention over a KV cache, and to the merging of partial results."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple, Union

from ._attention import Array, library_of
from ._values import shown

Lengths = Union[Array, Sequence[int]]
LAYOUTS = ("bhsd", "bshd")


def attention_with_cache(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    k: Optional[Array] = None,
    v: Optional[Array] = None,
    *,
    cache_seqlens: Union[int, Lengths, None] = None,
    block_table: Optional[Array] = None,
    cache_batch_idx: Optional[Lengths] = None,
    cache_leftpad: Optional[Lengths] = None,
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
    seqlens_q: Optional[Lengths] = None,
    cu_seqlens_q: Optional[Lengths] = None,
    max_seqlen_q: int = 0,
    seqlens_new: Optional[Lengths] = None,
    cu_seqlens_new: Optional[Lengths] = None,
    max_seqlen_new: int = 0,
    layout: str = "bhsd",
    num_splits: int = 0,
    return_lse: bool = False,
    num_threads: int = 0,
) -> Union[Array, Tuple[Array, Array]]:
    """Appends k and v to a cache, in place, and attends q to all that its sequences then hold. One call, no copy.

    The queries are the last positions of their sequence after the append. For arrays of NumPy, PyTorch and CuPy; JAX
    arrays cannot be written. There are no gradients.

    Args:
        q: [B, Hq, Sq, D]; packed [Tq, Hq, D] with cu_seqlens_q.
        k_cache, v_cache: [E, Hk, S, D] and [E, Hk, S, Dv], entries with room for S tokens each; with block_table pages
            [pages, Hk, page_size, D] and [pages, Hk, page_size, Dv], of any size. Type of q. v_cache may be a slice of
            k_cache's rows (k_cache[..., :Dv]); v is then None.
        k, v: what is appended: [B, Hk, Sn, D] and [B, Hk, Sn, Dv]; packed [Tn, Hk, D] and [Tn, Hk, Dv] with
            cu_seqlens_new. None: nothing is, and the caches are only read.
        cache_seqlens: [B] of int32: rows of each sequence before the append, left padding counted. An int is meant for
            all; None is the whole cache, where nothing is appended.
        block_table: int32 [B, max_pages]: row r of sequence b is in page block_table[b, r // page_size]. Entries of
            pages that hold no token may have any value. PagePool.block_table makes it.
        cache_batch_idx: [B] of int32, without block_table: the entry of each sequence; None: entry b.
        cache_leftpad: [B] of int32: rows at the begin of each sequence that hold no token. Positions count from there.
        rotary_cos, rotary_sin: [positions, R / 2], type of q or float32: the first R elements of every query and new
            key are turned by its position.
        rotary_interleaved: elements 2 i and 2 i + 1 make a pair; otherwise i and i + R / 2.
        rotary_one_position: all queries of a sequence are turned as its first one.
        sink, alibi_slopes, causal, window, scale, softcap: as in attention.
        seqlens_q, seqlens_new: [B] of int32: how many rows of q, and of k and v, each sequence has.
        cu_seqlens_q, cu_seqlens_new: [B + 1] of int32: sequence b is rows cu[b] .. cu[b + 1] of the packed array.
        max_seqlen_q, max_seqlen_new: packed: upper bounds of the lengths; needed on CUDA.
        layout: "bhsd", or "bshd": the second and the third dimension of every array with four of them change places.
        num_splits: into how many ranges of keys a sequence is cut; 0: what fills the device. With a fixed number a
            row's result does not depend, in any bit, on the rest of the batch.
        return_lse: also return the logarithm of the softmax's denominator.
        num_threads: of the CPU; 0 takes every core this process may use.

    Returns:
        out, shaped as q with the head size of v_cache; or (out, lse) with lse [B, Hq, Sq], packed [Hq, Tq], of float32
        (float64 for float64). A query that sees no key has out 0 and lse -inf.

    Raises:
        ValueError, TypeError: an argument cannot be used; the message names it and the way out. Nothing is written.
        RuntimeError, MemoryError: the device, its driver or its memory.
    """
    return _implementation(q, "q").attention_with_cache(
        q,
        k_cache,
        v_cache,
        k,
        v,
        cache_seqlens=cache_seqlens,
        block_table=block_table,
        cache_batch_idx=cache_batch_idx,
        cache_leftpad=cache_leftpad,
        rotary_cos=rotary_cos,
        rotary_sin=rotary_sin,
        rotary_interleaved=rotary_interleaved,
        rotary_one_position=rotary_one_position,
        sink=sink,
        alibi_slopes=alibi_slopes,
        causal=causal,
        window=window,
        scale=scale,
        softcap=softcap,
        seqlens_q=seqlens_q,
        cu_seqlens_q=cu_seqlens_q,
        max_seqlen_q=max_seqlen_q,
        seqlens_new=seqlens_new,
        cu_seqlens_new=cu_seqlens_new,
        max_seqlen_new=max_seqlen_new,
        layout=layout,
        num_splits=num_splits,
        return_lse=return_lse,
        num_threads=num_threads,
    )


def merge_states(
    o_a: Array,
    lse_a: Array,
    o_b: Array,
    lse_b: Array,
    out: Optional[Tuple[Array, Array]] = None,
    *,
    layout: str = "bhsd",
    num_threads: int = 0,
) -> Tuple[Array, Array]:
    """Two results of the same queries over different keys become the result over all of these keys.

    For prefixes that are shared, cascades and rings. Exact: what one call over all keys computes, up to rounding. For
    arrays of NumPy, PyTorch and CuPy. There are no gradients.

    Args:
        o_a, o_b: [B, Hq, Sq, Dv], with layout "bshd" [B, Sq, Hq, Dv], or packed [Tq, Hq, Dv].
        lse_a, lse_b: [B, Hq, Sq], or packed [Hq, Tq]; -inf where a part has no key.
        out: (o, lse) to write into. They may be (o_a, lse_a) or (o_b, lse_b). o may be float32 beside 16-bit parts.

    Returns:
        (o, lse), new ones or out.
    """
    return _implementation(o_a, "o_a").merge_states(
        o_a, lse_a, o_b, lse_b, out, layout=layout, num_threads=num_threads
    )


def explain_with_cache(q: Array, k_cache: Array, v_cache: Array, k: Any = None, v: Any = None, **options: Any) -> str:
    """Which backend and kernel attention_with_cache with the same arguments gets, and why. Computes nothing.

    For NumPy and CuPy arrays.
    """
    if library_of(q) == "torch":
        raise TypeError("q: is an array of torch; explain_with_cache takes NumPy arrays, or CuPy arrays for a GPU")
    return _implementation(q, "q").explain_with_cache(q, k_cache, v_cache, k, v, **options)


def require_ranks(q: Array, k_cache: Array, v_cache: Array, layout: str) -> None:
    """The shapes of results are taken from these before the library checks all else."""
    if q.ndim not in (3, 4):
        raise ValueError(f"q: has {q.ndim} dimensions; it has 4, or 3 where it is packed")
    order = "rows, heads" if layout == "bshd" else "heads, rows"
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.ndim != 4:
            raise ValueError(f"{name}: has {cache.ndim} dimensions; a cache has 4: entries or pages, {order}, head size")


def results_of(out: Any) -> Tuple[Array, Array]:
    """The two arrays that merge_states writes into."""
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise TypeError(f"out: got {shown(out)}, must be two arrays (o, lse), or None for new ones")
    return out[0], out[1]


def _implementation(array: Array, name: str) -> Any:
    # Import statements, because torch.compile can follow these.
    library = library_of(array, name)
    if library == "torch":
        from ._torch import cache

        return cache
    if library == "jax":
        raise TypeError(
            f"{name}: is an array of jax, which nothing may write to; numpy.from_dlpack reads it in place on the CPU, "
            "and jax.numpy.asarray takes the result back"
        )
    from . import _numpy_cache

    return _numpy_cache
