"""Textbook attention and its gradients in float64 NumPy: the reference of the self-check and of tests.

It shares no code with the library, stores the whole score matrix and is written to be read, not to be fast.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Tuple

import numpy as np

from ._arrays import Gradients

Array = np.ndarray


class Weights(NamedTuple):
    """Values that forward and backward share: [B, Hq, Sq, Sk] each, except lse [B, Hq, Sq]."""

    p: Array  # softmax, 0 where hidden
    kept: Array  # the dropout factor: 0 or 1 / (1 - p)
    slope: Array  # derivative of softcap
    lse: Array


def _philox(key: Tuple[Any, Any], counter: Tuple[Any, Any, Any, Any]) -> Tuple[Any, Any, Any, Any]:
    """Philox4x32-10 of Salmon et al. on arrays of 32-bit words, held in uint64."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    (key0, key1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        product0, product1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1 = (product1 >> half) ^ c1 ^ key0, product1 & low
        c2, c3 = (product0 >> half) ^ c3 ^ key1, product0 & low
        key0, key1 = (key0 + np.uint64(0x9E3779B9)) & low, (key1 + np.uint64(0xBB67AE85)) & low
    return c0, c1, c2, c3


def _philox2(key: Any, counter: Tuple[Any, Any], rounds: int) -> Tuple[Any, Any]:
    """Philox2x32 of the same authors."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    c0, c1 = counter
    for _ in range(rounds):
        product = np.uint64(0xD256D193) * c0
        c0, c1 = (product >> half) ^ key ^ c1, product & low
        key = (key + np.uint64(0x9E3779B9)) & low
    return c0, c1


def _kept_windows(window: Array, p: float) -> Array:
    """Which 16-bit numbers are kept. They are compared in the order of bf16 numbers: -inf first, NaN last."""
    rank = np.where(window < 0x8000, window + np.uint64(0x7F81), np.uint64(0x1FF80) - window) & np.uint64(0xFFFF)
    dropped = min(int(p * 2.0**16 + 0.5), 2**16 - 1)
    if dropped == 0x7F81 or dropped > 0x807F:
        return rank < 2**16 - dropped
    return rank >= dropped


def dropout_keeps(shape: Tuple[int, int, int, int], p: float, seed: int, offset: int) -> Array:
    """Which scores of [B, H, Sq, Sk] are kept: one random stream per head, 16 random bits per score."""
    b, h, i, j = (np.arange(n, dtype=np.uint64).reshape((-1,) + (1,) * (3 - d)) for d, n in enumerate(shape))
    words = [np.uint64(x & 0xFFFFFFFF) for x in (seed, seed >> 32, offset, offset >> 32)]
    zero = b * h * np.uint64(0)
    stream = _philox((words[0], words[1]), (words[2] + zero, words[3] + zero, b + zero, h + zero))
    two, eight, mask = (np.uint64(n) for n in (2, 8, 0xFFFFFFFF))

    # One draw serves i and i + 8 with j, j + 1, j + 8 and j + 9.
    counter_i = stream[1] + i // (two * eight) * eight + i % eight
    counter_j = stream[2] + j // (two * eight) * (eight // two) + j % eight // two
    column = (j // eight % two * two + j % two) * eight

    def byte(rounds: int) -> Array:
        drawn = _philox2(stream[0], (counter_i & mask, counter_j & mask), rounds)
        return np.where(i // eight % two == 1, drawn[1], drawn[0]) >> column & np.uint64(0xFF)

    return _kept_windows(byte(7) << eight | byte(5), p)


def _weights(q: Array, k: Array, options: dict) -> Weights:
    (batch, heads, len_q, dim), len_k = q.shape, k.shape[2]
    i, j = np.arange(len_q)[:, None], np.arange(len_k)
    lengths = [
        np.full((batch, 1, 1, 1), n) if given is None else np.asarray(given, np.int64).reshape(batch, 1, 1, 1)
        for given, n in ((options.get("seqlens_q"), len_q), (options.get("seqlens_k"), len_k))
    ]
    position = i + (0 if options.get("top_left") else lengths[1] - lengths[0])
    left, right = options.get("window", (-1, -1))
    exists = i < lengths[0]
    visible = exists & (j < lengths[1])
    if options.get("causal"):
        right = 0
    if left >= 0:
        visible = visible & (j >= position - left)
    if right >= 0:
        visible = visible & (j <= position + right)
    if options.get("mask") is not None:
        visible = visible & options["mask"]

    scale = options.get("scale")
    s = np.matmul(q, np.swapaxes(k, -1, -2)) * (1 / np.sqrt(dim) if scale is None else scale)
    slope = np.ones_like(s)
    if options.get("softcap"):
        capped = np.tanh(s / options["softcap"])
        s, slope = options["softcap"] * capped, 1 - capped**2
    if options.get("alibi_slopes") is not None:
        slopes = np.asarray(options["alibi_slopes"], np.float64)
        s = s - slopes.reshape((-1, heads, 1, 1)) * np.abs(position - j)
    if options.get("bias") is not None:
        s = s + np.asarray(options["bias"], np.float64)
    s = np.where(visible, s, -np.inf)

    # The sink is one more column of the softmax, without a value.
    sink = options.get("sink")
    sink = -np.inf if sink is None else np.asarray(sink, np.float64).reshape(1, heads, 1, 1)
    sink = np.where(exists, sink, -np.inf) + np.zeros((batch, heads, len_q, 1))
    top = np.max(np.concatenate([s, sink], axis=-1), axis=-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    total = np.exp(s - top).sum(axis=-1, keepdims=True) + np.exp(sink - top)
    with np.errstate(divide="ignore"):
        lse = np.where(total > 0, top + np.log(total), -np.inf)
    p = np.exp(s - top) / np.where(total > 0, total, 1)
    kept = np.ones_like(p)
    if options.get("dropout_p"):
        drop = options["dropout_p"]
        kept = dropout_keeps(p.shape, drop, options["dropout_seed"], options.get("dropout_offset", 0)) / (1 - drop)
    return Weights(p, kept, slope, lse[..., 0])


def _in_float64(q: Array, k: Array, v: Array, options: dict) -> Tuple[Array, Array, Array]:
    """One key/value head per query head; rows beyond a length become 0, so that their content does not matter."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    shared = q.shape[1] // k.shape[1] if k.shape[1] else 1
    k, v = np.repeat(k, shared, axis=1), np.repeat(v, shared, axis=1)
    if options.get("seqlens_q") is not None:
        exists = np.arange(q.shape[2])[:, None] < np.asarray(options["seqlens_q"]).reshape(-1, 1, 1, 1)
        q = np.where(exists, q, 0)
    if options.get("seqlens_k") is not None:
        exists = np.arange(k.shape[2])[:, None] < np.asarray(options["seqlens_k"]).reshape(-1, 1, 1, 1)
        k, v = np.where(exists, k, 0), np.where(exists, v, 0)
    return q, k, v


def attention(q: Array, k: Array, v: Array, **options: Any) -> Tuple[Array, Array]:
    """(out, lse) in float64. Takes the arguments of cuflash.attention, with four dimensions."""
    q, k, v = _in_float64(q, k, v, options)
    w = _weights(q, k, options)
    return np.matmul(w.p * w.kept, v), w.lse


def _sum_to(shape: Tuple[int, ...], x: Array) -> Array:
    """Undoes broadcasting."""
    wide = (1,) * (x.ndim - len(shape)) + shape
    axes = tuple(d for d, n in enumerate(wide) if n == 1 and x.shape[d] != 1)
    return x.sum(axis=axes, keepdims=True).reshape(shape)


def attention_backward(
    dout: Array, q: Array, k: Array, v: Array, *, dlse: Optional[Array] = None, **options: Any
) -> Gradients:
    """Gradients in float64. Takes the arguments of cuflash.attention_backward, with four dimensions."""
    shape_k, shape_v = k.shape, v.shape
    q, k, v = _in_float64(q, k, v, options)
    w = _weights(q, k, options)
    dout = np.asarray(dout, np.float64)
    if options.get("seqlens_q") is not None:
        exists = np.arange(q.shape[2])[:, None] < np.asarray(options["seqlens_q"]).reshape(-1, 1, 1, 1)
        dout = np.where(exists, dout, 0)
    scale = options.get("scale")
    scale = 1 / np.sqrt(q.shape[3]) if scale is None else scale
    out = np.matmul(w.p * w.kept, v)
    delta = (dout * out).sum(axis=-1, keepdims=True) - (0 if dlse is None else np.asarray(dlse, np.float64)[..., None])
    ds = w.p * (w.kept * np.matmul(dout, np.swapaxes(v, -1, -2)) - delta)

    def shared(x: Array, shape: Tuple[int, ...]) -> Array:
        return x.reshape(shape[0], shape[1], -1, *shape[2:]).sum(axis=2) if x.size else np.zeros(shape)

    def transposed(x: Array) -> Array:
        return np.swapaxes(x, -1, -2)

    dbias = dsink = None
    if options.get("bias") is not None:
        dbias = _sum_to(np.shape(options["bias"]), ds)
    if options.get("sink") is not None:
        sink = np.asarray(options["sink"], np.float64).reshape(1, -1, 1, 1)
        finite = np.isfinite(w.lse)[..., None]
        share = np.where(finite, np.exp(sink - np.where(finite, w.lse[..., None], 0)), 0)
        dsink = -(share * delta).sum(axis=(0, 2, 3))
    ds = ds * w.slope * scale
    return Gradients(
        np.matmul(ds, k),
        shared(np.matmul(transposed(ds), q), shape_k),
        shared(np.matmul(transposed(w.p * w.kept), dout), shape_v),
        dbias,
        dsink,
    )
