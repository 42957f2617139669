"""q, k and v packed into one array, or k and v: read in place, with the same results as separate arrays."""

import numpy as np
import pytest
from dlpack_producers import Capsules, Exchanged
from core_call import options, read_only

from cuflash import _core

LENGTHS = np.array([0, 2, 5], np.int32)
PACKED_SEQUENCES = dict(layout="thd", cu_seqlens_q=LENGTHS, cu_seqlens_k=LENGTHS)
WRAPPERS = [np.asarray, Capsules, Exchanged, lambda x: pytest.importorskip("torch").from_numpy(x)]


def random(*shape, kind=np.float32):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(kind)


def parts(array):
    return [array[..., n, :, :] for n in range(array.shape[-3])]


def lse_of(q):
    return np.empty((q.shape[0], q.shape[2], q.shape[1]) if q.ndim == 4 else (q.shape[1], q.shape[0]), np.float32)


def both_passes(inputs, gradients, parts_of_q, wrap=np.asarray, **changes):
    """Returns out and lse, and writes the gradients."""
    given = options(**{"layout": "bshd", **changes})
    wrapped = [None if x is None else wrap(x) for x in inputs]
    out, lse = np.empty(parts_of_q.shape, parts_of_q.dtype), lse_of(parts_of_q)
    _core.forward(*wrapped, out, lse, **given)
    dout = np.cos(out)
    written = [None if x is None else wrap(x) for x in gradients]
    _core.backward(*wrapped, out, lse, dout, None, *written, None, None, **given)
    return out, lse


def strided(array):
    """A copy in memory with gaps everywhere except within a row."""
    wide = np.full([2 * n for n in array.shape], np.nan, array.dtype)
    view = wide[tuple(slice(0, None, 2) for _ in array.shape[:-1]) + (slice(0, array.shape[-1]),)]
    view[...] = array
    return view


@pytest.mark.parametrize("wrap", WRAPPERS)
@pytest.mark.parametrize("change", [np.asarray, strided])
@pytest.mark.parametrize("shape, changes", [((2, 5, 3, 4, 8), {}), ((5, 3, 4, 8), PACKED_SEQUENCES)])
def test_qkv(shape, changes, change, wrap):
    qkv, dqkv = change(random(*shape)), change(np.full(shape, np.nan, np.float32))
    q, k, v = parts(qkv)
    expected = [np.full(q.shape, np.nan, np.float32) for _ in range(3)]
    result = both_passes((qkv, None, None), (dqkv, None, None), q, wrap, **changes, causal=True)
    separate = both_passes((q, k, v), expected, q, **changes, causal=True)
    for a, b in zip((*result, *parts(dqkv)), (*separate, *expected)):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("wrap", WRAPPERS)
@pytest.mark.parametrize("change", [np.asarray, strided])
@pytest.mark.parametrize("shape, changes", [((2, 5, 2, 2, 8), {}), ((5, 2, 2, 8), PACKED_SEQUENCES)])
def test_kv(shape, changes, change, wrap):
    q, kv, dkv = random(*shape[:-3], 4, 8), change(random(*shape)), change(np.full(shape, np.nan, np.float32))
    k, v = parts(kv)
    dq, expected = np.empty_like(q), [np.full(x.shape, np.nan, np.float32) for x in (q, k, v)]
    result = both_passes((q, kv, None), (dq, dkv, None), q, wrap, **changes)
    separate = both_passes((q, k, v), expected, q, **changes)
    for a, b in zip((*result, dq, *parts(dkv)), (*separate, *expected)):
        np.testing.assert_array_equal(a, b)


def test_gradients_that_are_not_wanted():
    q, kv = random(2, 5, 4, 8), random(2, 5, 2, 2, 8)
    dq, dkv, expected = np.empty_like(q), np.empty_like(kv), np.empty_like(q)
    both_passes((q, kv, None), (dq, None, None), q)
    both_passes((q, *parts(kv)), (expected, None, None), q)
    np.testing.assert_array_equal(dq, expected)
    both_passes((q, kv, None), (None, dkv, None), q)
    assert np.isfinite(dkv).all()


def test_empty_arrays():
    for batch, length in ((0, 5), (2, 0)):
        qkv = np.empty((batch, length, 3, 4, 8), np.float32)
        both_passes((qkv, None, None), (np.empty_like(qkv), None, None), qkv[:, :, 0])


QKV = random(2, 5, 3, 4, 8)


@pytest.mark.parametrize(
    "inputs, error, words",
    [
        ((random(2, 5, 4, 8), None, None), ValueError,
         r"qkv has shape \[2, 5, 4, 8\]; its third dimension from the end must be 3: \[..., 3, H, D\]"),
        ((random(4, 8), None, None), ValueError, r"qkv has shape \[4, 8\]; its third dimension from the end must be 3"),
        ((random(2, 5, 4, 8), QKV, None), ValueError, r"kv has shape \[2, 5, 3, 4, 8\]; .* must be 2"),
        ((random(1, 2, 5, 3, 4, 8), None, None), ValueError, "qkv: has 6 dimensions; it must have 1 to 4, or one more"),
        ((QKV, QKV[:, :, 1], QKV[:, :, 2]), ValueError, "q: has 5 dimensions; it must have 1 to 4$"),
        ((QKV.astype(np.int64), None, None), ValueError, "qkv: type int64 is not supported"),
        ((QKV.tolist(), None, None), TypeError, "qkv: list is not an array"),
        ((QKV[:, :, 0], None, QKV[:, :, 1]), ValueError, "k: is missing"),
        ((None, None, None), ValueError, "q: is missing"),
    ],
)
def test_refusals(inputs, error, words):
    out = np.empty((2, 5, 4, 8), np.float32)
    with pytest.raises(error, match=words):
        _core.forward(*inputs, out, None, **options("bshd"))


@pytest.mark.parametrize(
    "gradients, words",
    [
        ((np.empty_like(QKV[:, :, 0]), None, None), r"dqkv has shape \[2, 5, 4, 8\]; .* must be 3"),
        ((None, np.empty_like(QKV[:, :, 0]), None), "dk: must be None, because dqkv contains it"),
        ((None, None, np.empty_like(QKV[:, :, 0])), "dv: must be None, because dqkv contains it"),
        ((read_only(np.empty_like(QKV)), None, None), "dqkv: is read-only"),
    ],
)
def test_refused_gradients(gradients, words):
    with pytest.raises(ValueError, match=words):
        both_passes((QKV, None, None), gradients, QKV[:, :, 0])
