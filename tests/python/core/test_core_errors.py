"""Invalid arguments are refused in a message that names them and says what to do; nothing is written."""

import threading
import time

import numpy as np
import pytest
from core_call import options, read_only

import cuflash
from cuflash import _core

Q = np.ones((2, 4, 6, 8), np.float32)


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"q": Q.astype(np.int64)}, ValueError, "q: type int64 is not supported"),
        ({"q": Q.astype(">f4")}, ValueError, "q: has big-endian elements"),
        ({"q": Q.tolist()}, TypeError, "q: list is not an array"),
        ({"k": Q.tolist()}, TypeError, "k: list is not an array"),
        ({"q": Q[0, 0, 0]}, ValueError, "q: has 1 dimensions"),
        ({"k": Q[0]}, ValueError, "k: has 3 dimensions, but q has 4"),
        ({"k": Q.astype(np.float64)}, ValueError, "k: type f64"),
        ({"k": Q[:, :3]}, ValueError, "q: has 4 heads, must be a multiple of the 3 heads of k"),
        ({"v": Q[:, :, :5]}, ValueError, "v: dimension 2"),
        ({"bias": Q.astype(np.float64)}, ValueError, "bias: "),
        ({"bias": np.ones((3, 4, 6, 6), np.float32)}, ValueError, "bias: dimension 0"),
        ({"bias": np.ones((1, 1, 1, 1, 6), np.float32)}, ValueError, "bias: has 5 dimensions"),
        ({"mask": np.ones((6, 6), np.int64)}, ValueError, "mask: type int64"),
        ({"mask": [[True] * 6] * 6}, TypeError, "mask: list is not a numpy array"),
        ({"sink": np.ones(3, np.float32)}, ValueError, "sink: "),
        ({"window": (-2, 0)}, ValueError, "window: got (-2, 0)"),
        ({"softcap": -1.0}, ValueError, "softcap"),
        ({"scale": float("nan")}, ValueError, "scale"),
        ({"dropout_p": 1.5, "dropout_seed": 0}, ValueError, "dropout_p"),
        ({"dropout_p": 0.5}, ValueError, "dropout_seed: is needed"),
        ({"seqlens_k": [7, 1]}, ValueError, "seqlens_k"),
        ({"seqlens_k": [-1, 1]}, ValueError, "seqlens_k"),
        ({"seqlens_k": [2**32 + 1, 1]}, ValueError, "seqlens_k"),
        ({"seqlens_k": [1.0, 2.0]}, ValueError, "seqlens_k: has elements of float64"),
        ({"seqlens_q": [1]}, ValueError, "seqlens_q"),
        ({"alibi_slopes": np.ones(5)}, ValueError, "alibi_slopes"),
        ({"no_such_option": 1}, TypeError, "no_such_option"),
    ],
)
def test_refusals(change, error, words):
    arguments = {"q": Q, "k": Q, "v": Q, **change}
    with pytest.raises(error) as raised:
        cuflash.attention(**arguments)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    "out, words",
    [
        (None, "out: is missing"),
        (read_only(np.empty_like(Q)), "out: is read-only"),
        (np.empty_like(Q)[:, :, ::-1], "out: stride -8"),
        (np.broadcast_to(np.empty_like(Q[:1]), Q.shape).copy()[:, :, :, ::2], "out: "),
        (np.lib.stride_tricks.as_strided(np.empty_like(Q), Q.shape, (0, 192, 32, 4)), "share memory"),
        (Q, "out: has the same data as q"),
        (np.empty((2, 4, 6, 8), np.float16), "out: type f16"),
        (np.empty((2, 4, 6), np.float32), "out: has rank 3"),
        (np.empty((1, 2, 4, 6, 8), np.float32), "out: has 5 dimensions"),
    ],
)
def test_outputs_that_cannot_be_written(out, words):
    with pytest.raises(ValueError) as raised:
        _core.forward(Q, Q, Q, out, None, **options())
    assert words in str(raised.value)


@pytest.mark.parametrize("change, words", [
    ({"v": Q[:, :3]}, "v: dimension 1 of shape [2, 3, 6, 8] is 3, must be 4, the length of k"),
    ({"v": Q[:, :, :3]}, "v: dimension 2 of shape [2, 4, 3, 8] is 3, must be 6, the heads of k"),
    ({"k": Q[:1]}, "k: dimension 0 of shape [1, 4, 6, 8] is 1, must be 2"),
    ({"k": Q[..., :4].copy()}, "k: dimension 3 of shape [2, 4, 6, 4] is 4, must be 8, the head size of q"),
    ({"out": np.empty((2, 5, 6, 8), np.float32)}, "out: dimension 1 of shape [2, 5, 6, 8] is 5, must be 4"),
    ({"q": Q[0]}, "q: has rank 3, must have rank 4: [B, Sq, Hq, D]"),
    ({"q": Q[:, ::-1]}, "q: stride -48 of dimension 1 is negative"),
    ({"bias": np.ones((1, 1, 6, 4), np.float32)}, "bias: dimension 2 of shape [1, 1, 6, 4] is 6, must be 4"),
])
def test_messages_have_the_order_of_the_callers_dimensions(change, words):
    """[batch, length, heads, dim] here; a bias is [batch, heads, queries, keys] in every layout."""
    call = {"q": Q, "k": Q, "v": Q, "out": np.empty_like(Q), **change}
    bias = {"bias": call.pop("bias")} if "bias" in call else {}
    with pytest.raises(ValueError) as raised:
        _core.forward(call["q"], call["k"], call["v"], call["out"], None, **options("bshd", **bias))
    assert str(raised.value).startswith(words), raised.value


def test_layout_has_three_values():
    with pytest.raises(ValueError, match="layout: 'sbhd' must be"):
        _core.forward(Q, Q, Q, np.empty_like(Q), None, **options("sbhd"))


def test_a_refused_call_writes_nothing():
    out, lse = np.full_like(Q, 7), np.full(Q.shape[:3], 7, np.float32)
    with pytest.raises(ValueError):
        _core.forward(Q, Q, Q, out, lse, **options(softcap=-1.0))
    assert (out == 7).all() and (lse == 7).all()


def test_the_gil_is_released():
    """One thread counts while another is inside a long call."""
    q = np.ones((1, 2, 3000, 64), np.float32)
    finished, counts = threading.Event(), []

    def call():
        cuflash.attention(q, q, q, num_threads=1)
        finished.set()

    worker = threading.Thread(target=call)
    worker.start()
    while not finished.is_set():
        counts.append(time.perf_counter())
        time.sleep(0.001)
    worker.join()
    assert len(counts) > 10, f"the main thread ran {len(counts)} times during the call"


def test_threads_get_their_own_results_and_errors():
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((1, 2, 40 + n, 16)).astype(np.float32) for n in range(8)]
    expected = [cuflash.attention(x, x, x) for x in inputs]
    failures = []

    def work(n):
        for _ in range(20):
            if not np.array_equal(cuflash.attention(inputs[n], inputs[n], inputs[n]), expected[n]):
                failures.append(n)
            try:
                cuflash.attention(inputs[n], inputs[n], inputs[n], window=(-2 - n, 0))
                failures.append(n)
            except ValueError as error:
                if str(-2 - n) not in str(error):
                    failures.append(str(error))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
