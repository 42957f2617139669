"""Attention over a KV cache and the merging of partial results, on arrays of any library but JAX."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple, Union

from ._arrays import Array, library_of

Lengths = Union[Array, Sequence[int]]


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
    """Appends k and v to a cache in place, then attends q to everything its sequences hold. One call, no copy.

    The queries are the last positions of their sequence after the append. For arrays of NumPy, PyTorch and CuPy; JAX
    arrays are immutable. It has no gradients.

    Args:
        q: [B, Hq, Sq, D]; packed [Tq, Hq, D] with cu_seqlens_q.
        k_cache, v_cache: [E, Hk, S, D] and [E, Hk, S, Dv], entries with room for S tokens each; with block_table, pages
            [pages, Hk, page_size, D] and [pages, Hk, page_size, Dv] of any page size. Type of q. v_cache may be a slice
            of k_cache's rows (k_cache[..., :Dv]); v is then None.
        k, v: the rows to append: [B, Hk, Sn, D] and [B, Hk, Sn, Dv]; packed [Tn, Hk, D] and [Tn, Hk, Dv] with
            cu_seqlens_new. None appends nothing and only reads the caches.
        cache_seqlens: [B] of int32: rows of each sequence before the append, including left padding. An int applies to
            every sequence; None means the whole cache, if nothing is appended.
        block_table: int32 [B, max_pages]: row r of sequence b is in page block_table[b, r // page_size]. Entries of
            pages that hold no token may have any value. PagePool.block_table makes it.
        cache_batch_idx: [B] of int32, without block_table: the entry of each sequence; None: entry b.
        cache_leftpad: [B] of int32: rows at the start of each sequence that hold no token. Positions count from there.
        rotary_cos, rotary_sin: [positions, R / 2], type of q or float32: the first R elements of every query and new
            key are rotated by its position.
        rotary_interleaved: elements 2 i and 2 i + 1 make a pair; otherwise i and i + R / 2.
        rotary_one_position: rotate all queries of a sequence by the position of its first one.
        sink, alibi_slopes, causal, window, scale, softcap: as in attention.
        seqlens_q, seqlens_new: [B] of int32: how many rows of q, and of k and v, each sequence has.
        cu_seqlens_q, cu_seqlens_new: [B + 1] of int32: sequence b is rows cu[b] .. cu[b + 1] of the packed array.
        max_seqlen_q, max_seqlen_new: packed: upper bounds of the lengths; required on CUDA.
        layout: "bhsd", or "bshd": every array of four dimensions has its second and third swapped.
        num_splits: how many ranges of keys each sequence is split into; 0 picks what fills the device. With a fixed
            number, no bit of a row's result depends on the rest of the batch.
        return_lse: also return the logarithm of the softmax's denominator.
        num_threads: on the CPU; 0 uses every core this process may use.

    Returns:
        out, shaped as q with the head size of v_cache; or (out, lse) with lse [B, Hq, Sq], packed [Hq, Tq], of float32
        (float64 for float64). A query that sees no key has out 0 and lse -inf.

    Raises:
        ValueError, TypeError: an argument is invalid; the message names it and says what to do. Nothing is written.
        RuntimeError, MemoryError: the device, its driver or its memory failed.
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
    """Merges two results of the same queries over different keys into the result over all of these keys.

    For shared prefixes, cascades and ring attention. Exact: what one call over all keys computes, up to rounding. For
    arrays of NumPy, PyTorch and CuPy. It has no gradients.

    Args:
        o_a, o_b: [B, Hq, Sq, Dv], with layout "bshd" [B, Sq, Hq, Dv], or packed [Tq, Hq, Dv].
        lse_a, lse_b: [B, Hq, Sq], or packed [Hq, Tq]; -inf where a part has no key.
        out: (o, lse) to write into. They may be (o_a, lse_a) or (o_b, lse_b). o may be float32 if the parts are 16-bit.

    Returns:
        (o, lse): new arrays, or out.
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


def _implementation(array: Array, name: str) -> Any:
    # Import statements, because torch.compile can trace these.
    library = library_of(array, name)
    if library == "torch":
        from ._torch import kv_cache

        return kv_cache
    if library == "jax":
        raise TypeError(
            f"{name}: is an array of jax, which is immutable; numpy.from_dlpack reads it in place on the CPU, "
            "and jax.numpy.asarray takes the result back"
        )
    from . import _numpy_kv_cache

    return _numpy_kv_cache
