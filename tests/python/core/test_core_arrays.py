"""Every protocol that exposes an array's memory, for every type; what cannot be read in place is refused or copied."""

import gc
import sys
import weakref

import numpy as np
import pytest
from dlpack_producers import Capsules, Elsewhere, Exchanged, unaligned
from core_call import options

import cuflash
from cuflash import _core, _reference


def inputs(kind=np.float32, shape=(2, 3, 5, 8)):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(kind) for _ in range(3)]


def check(arrays, out, allowed=1e-6):
    expected, _ = _reference.attention(*arrays)
    np.testing.assert_allclose(np.asarray(out, np.float64), expected, rtol=0, atol=allowed)


@pytest.mark.parametrize("kind, allowed", [(np.float64, 1e-14), (np.float32, 1e-6), (np.float16, 2e-3)])
@pytest.mark.parametrize("wrap", [np.asarray, Capsules, Exchanged, lambda x: Capsules(x, versioned=False), memoryview])
def test_every_protocol_reads_and_writes_in_place(wrap, kind, allowed):
    arrays = inputs(kind)
    out, lse = np.empty_like(arrays[0]), np.empty((2, 3, 5), np.float64 if kind is np.float64 else np.float32)
    _core.forward(*(wrap(x) for x in arrays), wrap(out), wrap(lse), **options())
    check(arrays, out, allowed)
    np.testing.assert_allclose(lse, _reference.attention(*arrays)[1], atol=10 * allowed)


@pytest.mark.parametrize("wrap", [np.asarray, Capsules, Exchanged, lambda x: Capsules(x, versioned=False)])
def test_strides_by_every_protocol(wrap):
    arrays = [x[:, ::2, 1:4] for x in inputs()]
    out = np.zeros((2, 3, 2, 16), np.float32)[..., 3:11].swapaxes(1, 2)
    _core.forward(*(wrap(x) for x in arrays), wrap(out), None, **options())
    check(arrays, out)


@pytest.mark.parametrize("ways", [{"offset": 64}, {"with_strides": False}, {"offset": 32, "with_strides": False}])
def test_what_a_dlpack_tensor_may_leave_out_or_add(ways):
    arrays = inputs()
    out = np.empty_like(arrays[0])
    _core.forward(*(Exchanged(x, **ways) for x in arrays), Exchanged(out, **ways), None, **options())
    check(arrays, out)


@pytest.mark.parametrize("wrap", [np.asarray, Capsules, Exchanged])
def test_masks_and_lengths_by_every_protocol(wrap):
    arrays = inputs()
    mask = np.random.default_rng(1).random((1, 1, 5, 5)) < 0.5
    lengths, out = np.array([3, 5], np.int32), np.empty_like(arrays[0])
    _core.forward(*arrays, out, None, **options(mask=wrap(mask), seqlens_k=wrap(lengths)))
    expected, _ = _reference.attention(*arrays, mask=mask, seqlens_k=lengths)
    np.testing.assert_allclose(out, expected, atol=1e-6)


def test_bfloat16_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    arrays = inputs(ml_dtypes.bfloat16)
    out = np.empty_like(arrays[0])
    _core.forward(*arrays, out, None, **options())
    check(arrays, out, 2e-2)
    check([x[:, ::2, 1:] for x in arrays], cuflash.attention(*(x[:, ::2, 1:] for x in arrays)), 2e-2)
    with pytest.raises(ValueError, match="q: type float8_e4m3fn is not supported"):
        cuflash.attention(*(x.astype(ml_dtypes.float8_e4m3fn) for x in arrays))


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_layouts_are_strides(layout):
    arrays = inputs()
    out = np.empty_like(arrays[0])
    given = [x.swapaxes(1, 2) if layout == "bshd" else x for x in (*arrays, out)]
    _core.forward(*given, None, **options(layout))
    check(arrays, out)


def test_packed_sequences():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 2, 8)).astype(np.float32) for n in (9, 12, 12))
    cu_q, cu_k = np.array([0, 4, 4, 9], np.int32), np.array([0, 5, 6, 12], np.int32)
    out, lse = np.full((9, 2, 8), np.nan, np.float32), np.full((2, 9), np.nan, np.float32)
    _core.forward(q, k, v, out, lse, **options("thd", cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, causal=True))
    for n in range(3):
        rows_q, rows_k = slice(cu_q[n], cu_q[n + 1]), slice(cu_k[n], cu_k[n + 1])
        one = [x.swapaxes(0, 1)[None] for x in (q[rows_q], k[rows_k], v[rows_k])]
        expected, expected_lse = _reference.attention(*one, causal=True)
        np.testing.assert_allclose(out[rows_q].swapaxes(0, 1), expected[0], atol=1e-6)
        np.testing.assert_allclose(lse[:, rows_q], expected_lse[0], atol=1e-5)


def test_read_only_inputs_are_fine():
    arrays = inputs()
    for x in arrays:
        x.flags.writeable = False
    check(arrays, cuflash.attention(*arrays))
    check(arrays, cuflash.attention(*(np.frombuffer(x.tobytes(), np.float32).reshape(x.shape) for x in arrays)))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: np.broadcast_to(x[:1], x.shape),
        lambda x: np.broadcast_to(x[:, :1], x.shape),
        lambda x: np.broadcast_to(x[:, :, :1], x.shape),
        lambda x: np.broadcast_to(x[..., :1], x.shape),
        lambda x: x[::-1, ::-1, ::-1, ::-1],
        lambda x: x[..., ::2],
        lambda x: x.swapaxes(2, 3),
        lambda x: np.asfortranarray(x),
        lambda x: unaligned(x),
        lambda x: np.stack([x, x], -1)[..., 0],
        lambda x: np.rec.fromarrays([x, x.astype(np.int8)], names="a,b")["a"],  # strides of 5 bytes
        lambda x: x[:, :, :0],
        lambda x: x[:0],
    ],
)
def test_attention_takes_any_strides(change):
    arrays = [change(x) for x in inputs()]
    check(arrays, cuflash.attention(*arrays))


def test_the_core_refuses_what_it_cannot_read_in_place():
    q, k, v = inputs()
    out = np.empty_like(q)
    halves = np.stack([q, q], -1)[..., 0]
    odd = np.rec.fromarrays([q, q.astype(np.int8)], names="a,b")["a"]
    for bad, words in [
        (halves, "q: the last dimension must be contiguous"),
        (q[:, :, ::-1], "q: stride -8 of dimension 2 is negative"),
        (odd, "q: its stride of"),
        (unaligned(q), "q: data .* is not aligned"),
    ]:
        with pytest.raises(ValueError, match=words):
            _core.forward(bad, k, v, out, None, **options())


def test_arrays_are_given_back():
    """A call holds nothing after it ends, whether it succeeds or fails."""
    for wrap in (np.asarray, Capsules, Exchanged):
        for changes in ({}, {"softcap": -1.0}):
            arrays = inputs()
            wrapped = [wrap(x) for x in arrays]
            references = [sys.getrefcount(x) for x in arrays]
            try:
                _core.forward(*wrapped, np.empty_like(arrays[0]), None, **options(**changes))
            except ValueError:
                assert changes
            assert [sys.getrefcount(x) for x in arrays] == references, wrap
    capsule = Capsules(inputs()[0])
    alive = weakref.ref(capsule)
    with pytest.raises(ValueError):
        _core.forward(capsule, *inputs()[:2], None, None, **options())
    del capsule
    assert alive() is None


@pytest.mark.parametrize("wrap", [np.asarray, Capsules, Exchanged, lambda x: pytest.importorskip("torch").from_numpy(x)])
def test_arrays_without_elements_may_have_any_strides(wrap):
    q = np.lib.stride_tricks.as_strided(np.empty(0, np.float32), (0, 2, 3, 8), (0, 0, 0, 0))
    k = np.empty((0, 2, 5, 16), np.float32)[..., ::2]
    out, lse = np.empty((0, 2, 3, 8), np.float32), np.empty((0, 2, 3), np.float32)
    _core.forward(wrap(q), wrap(k), wrap(k), wrap(out), wrap(lse), **options())
    assert cuflash.attention(q, k, k).shape == (0, 2, 3, 8)


def test_types_come_and_go():
    """The cached route of a type is not used for another type at the same address."""
    q, k, v = inputs()
    for _ in range(20):
        kind = type("ShortLived", (Capsules,), {})
        _core.forward(kind(q), k, v, np.empty_like(q), None, **options())
        del kind
        gc.collect()
        with pytest.raises(TypeError, match="q: NoArray is not an array"):
            _core.forward(type("NoArray", (), {})(), k, v, np.empty_like(q), None, **options())


def test_devices_are_not_mixed():
    q, k, v = inputs()
    gpu = Elsewhere(k, (2, 0))
    with pytest.raises(ValueError, match="k: is on CUDA device 0, but q is on the CPU"):
        _core.forward(q, gpu, v, np.empty_like(q), None, **options())
    assert gpu.calls[0]["stream"] == 1  # DLPack's number for the default stream
    with pytest.raises(ValueError, match="q: is on Metal memory; cuflash computes on"):
        _core.forward(Elsewhere(q, (8, 0)), k, v, np.empty_like(q), None, **options())


def test_errors_of_an_array_are_reported():
    class Refuses(Capsules):
        def __dlpack__(self, **arguments):
            raise BufferError("not today")

    q, k, v = inputs()
    with pytest.raises(ValueError, match="k: its memory cannot be accessed: not today"):
        _core.forward(q, Refuses(k), v, np.empty_like(q), None, **options())
