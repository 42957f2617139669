"""cuflash.attention with NumPy arrays against the float64 reference: options, types, strides and sizes crossed."""

import numpy as np
import pytest

pytest.importorskip("hypothesis")
pytest.importorskip("ml_dtypes")

from random_cases import examples
from core_cases import ALLOWED, assert_close, normal, problems
from hypothesis import given, settings

import cuflash
from cuflash import _reference


@settings(max_examples=examples(250))
@given(problems())
def test_forward_and_backward(problem):
    q, k, v, dout, options = (problem[name] for name in ("q", "k", "v", "dout", "options"))
    allowed, allowed_gradient = ALLOWED[problem["kind"]]
    out, lse = cuflash.attention(q, k, v, return_lse=True, **options)
    assert out.dtype == q.dtype and lse.dtype == (np.float64 if problem["kind"] == "float64" else np.float32)
    expected_out, expected_lse = _reference.attention(q, k, v, **options)
    assert_close(lse, expected_lse, max(1e-4 * (problem["kind"] != "float64"), allowed * 10), "lse")
    assert_close(out, expected_out, allowed * max(1.0, np.abs(expected_out).max(initial=0)), "out")

    gradients = cuflash.attention_backward(dout, q, k, v, out, lse, **options)
    expected = _reference.attention_backward(dout, q, k, v, **options)
    for name in expected._fields:
        result, reference = getattr(gradients, name), getattr(expected, name)
        assert (result is None) == (reference is None), name
        if reference is not None:
            assert_close(result, reference, allowed_gradient * max(1.0, np.abs(reference).max(initial=0)), name)


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_missing_dimensions_are_one(rank):
    rng = np.random.default_rng(0)
    q, k, v = (normal(rng, "float32", 1, 1, n, 8)[(0,) * (4 - rank)] for n in (5, 7, 7))
    out, lse = cuflash.attention(q, k, v, causal=True, return_lse=True)
    assert out.shape == q.shape and lse.shape == q.shape[:-1]
    wide = [x.reshape(1, 1, -1, 8) for x in (q, k, v)]
    expected_out, expected_lse = _reference.attention(*wide, causal=True)
    assert_close(out.reshape(1, 1, 5, 8), expected_out, 1e-5, "out")
    assert_close(lse.reshape(1, 1, 5), expected_lse, 1e-5, "lse")
    gradients = cuflash.attention_backward(out, q, k, v, out, lse, dlse=lse, causal=True)
    expected = _reference.attention_backward(expected_out, *wide, dlse=expected_lse, causal=True)
    assert gradients.dq.shape == q.shape and gradients.dk.shape == k.shape
    assert_close(gradients.dq.reshape(1, 1, 5, 8), expected.dq, 1e-4, "dq")
    assert_close(gradients.dk.reshape(1, 1, 7, 8), expected.dk, 1e-4, "dk")


def test_a_bias_of_one_column_serves_all_keys():
    rng = np.random.default_rng(0)
    q, k, v, dout = (normal(rng, "float64", 2, 2, n, 8) for n in (5, 7, 7, 5))
    bias, sink = normal(rng, "float64", 2, 1, 5, 1), normal(rng, "float64", 2)
    out, lse = cuflash.attention(q, k, v, bias=bias, sink=sink, return_lse=True)
    assert_close(out, _reference.attention(q, k, v, bias=bias, sink=sink)[0], 1e-12, "out")
    gradients = cuflash.attention_backward(dout, q, k, v, out, lse, bias=bias, sink=sink)
    expected = _reference.attention_backward(dout, q, k, v, bias=bias, sink=sink)
    assert np.abs(expected.dbias).max() > 1e-3  # with a sink, the sum over a row is not 0
    assert_close(gradients.dbias, expected.dbias, 1e-12, "dbias")


def test_results_do_not_depend_on_threads():
    rng = np.random.default_rng(0)
    q, k, v = (normal(rng, "float32", 2, 3, 150, 24) for _ in range(3))
    one = cuflash.attention(q, k, v, causal=True, num_threads=1)
    np.testing.assert_array_equal(one, cuflash.attention(q, k, v, causal=True, num_threads=2))


def test_what_is_hidden_does_not_exist():
    rng = np.random.default_rng(0)
    q, k, v = (normal(rng, "float32", 2, 2, 33, 16) for _ in range(3))
    lengths = [12, 33]
    clean = cuflash.attention(q, k, v, seqlens_k=lengths)
    k[0, :, 12:], v[0, :, 12:] = np.nan, np.inf
    np.testing.assert_array_equal(cuflash.attention(q, k, v, seqlens_k=lengths), clean)


def test_explain_names_the_backend_and_the_kernel():
    q = np.zeros((1, 8, 64, 32), np.float32)
    text = cuflash.explain(q, q, q, causal=True)
    assert "forward f32 B=1 Hq=8" in text and "backend    cpu" in text
    assert "backward f32" in cuflash.explain(q, q, q, backward=True)
