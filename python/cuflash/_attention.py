"""The public functions on arrays of any library: each finds the library and calls its implementation."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple, Union

from ._arrays import Array, Gradients, MaskSummary, library_of


def _implementation(library: str) -> Any:
    # Import statements, because torch.compile can trace these.
    if library == "torch":
        from . import _torch

        return _torch
    if library == "jax":
        from . import jax

        return jax
    from . import _numpy

    return _numpy


def _missing_dimensions(**arrays: Array) -> int:
    """How many leading dimensions of size 1 the arrays need to be [batch, heads, length, dim]."""
    library, rank = library_of(arrays["q"]), arrays["q"].ndim
    if not 2 <= rank <= 4:
        raise ValueError(
            f"q: has {rank} dimensions; it is [batch, heads, length, dim], [heads, length, dim] or [length, dim]"
        )
    for name, array in arrays.items():
        if library_of(array, name) != library:
            raise TypeError(f"{name}: is an array of {library_of(array)}, but q is one of {library}")
        if array.ndim != rank:
            raise ValueError(f"{name}: has {array.ndim} dimensions, but q has {rank}; they need the same number")
    return 4 - rank


def _widen(array: Optional[Array], missing: int, name: str = "q") -> Optional[Array]:
    if array is None or missing == 0:
        return array
    try:
        return array[(None,) * missing]
    except RuntimeError:  # PyTorch's, for a sparse tensor
        raise ValueError(
            f"{name}: has the layout {array.layout}; cuflash takes dense tensors, as to_dense() makes"
        ) from None


def _narrow(array: Array, missing: int) -> Array:
    return array if missing == 0 else array[(0,) * missing]


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    bias: Optional[Array] = None,
    mask: Union[Array, MaskSummary, None] = None,
    sink: Optional[Array] = None,
    causal: bool = False,
    window: Tuple[int, int] = (-1, -1),
    top_left: bool = False,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    alibi_slopes: Optional[Array] = None,
    dropout_p: float = 0.0,
    dropout_seed: Optional[int] = None,
    dropout_offset: int = 0,
    seqlens_q: Union[Array, Sequence[int], None] = None,
    seqlens_k: Union[Array, Sequence[int], None] = None,
    return_lse: bool = False,
    deterministic: bool = False,
    num_threads: int = 0,
) -> Union[Array, Tuple[Array, Array]]:
    """softmax(scale * q kᵀ + bias, masked) v, exactly, in memory that grows with the length and not with its square.

    PyTorch and JAX differentiate it as usual; attention_backward computes the gradients for NumPy and CuPy.

    Args:
        q: [B, Hq, Sq, D] of float64, float32, float16 or bfloat16. [H, S, D], for one batch entry, and [S, D], for one
            head of one entry, work too; k, v and the results then have the same number of dimensions.
        k, v: [B, Hk, Sk, D] and [B, Hk, Sk, Dv], type of q. Hq is a multiple of Hk: consecutive query heads share one.
        bias: anything that broadcasts to [B, Hq, Sq, Sk], type of q or float32; added to the scores.
        mask: bool, broadcasts likewise; False hides the key from the query. Or what summarize_mask made of it, which
            saves reading it again in every layer and in backward.
        sink: [Hq], type of q or float32: one logit per head that enters the softmax's denominator and has no value.
        causal: query i sees key j only if j <= i + c, with c = Sk - Sq: the last query is aligned with the last key.
        window: (left, right): j >= i + c - left and j <= i + c + right; -1 is unbounded.
        top_left: c = 0, the first query is aligned with the first key.
        scale: default 1/sqrt(D).
        softcap: > 0: scores become softcap * tanh(score / softcap).
        alibi_slopes: [Hq] or [B, Hq], float32: slope * |i + c - j| is subtracted from the scores.
        dropout_p: probability of dropping a weight; the others are scaled by 1 / (1 - p).
        dropout_seed, dropout_offset: select the weights that are dropped. NumPy and CuPy need a seed; PyTorch draws one
            from its generator by default.
        seqlens_q, seqlens_k: [B] of int32: how many rows of q, and of k and v, each batch entry has. The rest is never
            read; the results have 0 there, and LSE -inf.
        return_lse: also return the logarithm of the softmax's denominator.
        deterministic: make gradients on CUDA identical in every bit from run to run. All other results always are.
        num_threads: on the CPU; 0 uses every core this process may use.

    Returns:
        out [B, Hq, Sq, Dv], or (out, lse) with lse [B, Hq, Sq] of float32 (float64 for float64). A query that sees no
        key has out 0 and lse -inf.

    Raises:
        ValueError, TypeError: an argument is invalid; the message names it and says what to do.
        RuntimeError, MemoryError: the device, its driver or its memory failed.
    """
    implementation = _implementation(library_of(q))
    missing = _missing_dimensions(q=q, k=k, v=v)
    result = implementation.attention(
        _widen(q, missing),
        _widen(k, missing, "k"),
        _widen(v, missing, "v"),
        bias=bias,
        mask=mask,
        sink=sink,
        causal=causal,
        window=window,
        top_left=top_left,
        scale=scale,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        dropout_p=dropout_p,
        dropout_seed=dropout_seed,
        dropout_offset=dropout_offset,
        seqlens_q=seqlens_q,
        seqlens_k=seqlens_k,
        return_lse=return_lse,
        deterministic=deterministic,
        num_threads=num_threads,
    )
    return tuple(_narrow(x, missing) for x in result) if return_lse else _narrow(result, missing)


def attention_backward(
    dout: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, *, dlse: Optional[Array] = None, **options: Any
) -> Gradients:
    """Gradients for NumPy and CuPy arrays.

    Args:
        dout: gradient of out, with the shape of out.
        q, k, v: as given to attention.
        out, lse: as attention(..., return_lse=True) returned them.
        dlse: gradient of lse, if lse was used.
        options: the keyword arguments given to attention, with the same values.

    Returns:
        Gradients(dq, dk, dv, dbias, dsink), each with the shape of its array.
    """
    library = library_of(q)
    if library not in ("numpy", "cupy"):
        raise TypeError(f"q: is an array of {library}, which computes gradients itself: differentiate attention there")
    missing = _missing_dimensions(q=q, k=k, v=v, out=out, dout=dout)
    widened = [_widen(x, missing) for x in (dout, q, k, v, out, lse)]
    g = _implementation(library_of(q)).attention_backward(*widened, dlse=_widen(dlse, missing), **options)
    return g._replace(dq=_narrow(g.dq, missing), dk=_narrow(g.dk, missing), dv=_narrow(g.dv, missing))


def explain(q: Array, k: Array, v: Array, *, backward: bool = False, **options: Any) -> str:
    """Which backend and kernel attention(q, k, v, **options), or its gradient, gets, and why. Computes nothing.

    For NumPy and CuPy arrays.
    """
    library = library_of(q)
    if library not in ("numpy", "cupy"):
        raise TypeError(f"q: is an array of {library}; explain takes NumPy arrays, or CuPy arrays for a GPU")
    missing = _missing_dimensions(q=q, k=k, v=v)
    q, k, v = (_widen(x, missing) for x in (q, k, v))
    return _implementation(library_of(q)).explain(q, k, v, backward=backward, **options)
