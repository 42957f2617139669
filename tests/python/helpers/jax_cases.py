"""Random problems for the tests of cuflash.jax, and the comparison with float64 NumPy."""

import os

import numpy as np
import pytest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch's tests need GPU memory too
jax = pytest.importorskip("jax", minversion="0.5", reason="jax 0.5 or newer is not installed")
import jax.numpy as jnp  # noqa: E402

import cuflash.jax  # noqa: E402
from cuflash import _reference  # noqa: E402

EPSILON = {"float64": 1e-13, "float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}


@pytest.fixture(autouse=True)
def place(device):
    """Puts arrays on the device under test, and enables float64."""
    try:
        where = jax.devices("gpu" if device == "cuda" else "cpu")[0]
    except RuntimeError as error:
        pytest.skip(f"jax has no such device: {error}")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    with jax.default_device(where):
        yield where
    jax.config.update("jax_enable_x64", before)


def problem(dtype="float32", batch=2, heads=4, heads_k=2, len_q=9, len_k=13, dim=8, dim_v=6, seed=0):
    """q, k, v, and a source of random arrays for options."""
    draw = np.random.default_rng(seed).standard_normal
    shapes = (batch, heads, len_q, dim), (batch, heads_k, len_k, dim), (batch, heads_k, len_k, dim_v)
    return [jnp.asarray(draw(shape), dtype) for shape in shapes], draw


OPTIONS = {  # by name, for the problem above: functions of a source of random numbers and of the type
    "plain": lambda draw, dtype: {},
    "causal": lambda draw, dtype: dict(causal=True, scale=0.3),
    "window, softcap": lambda draw, dtype: dict(window=(3, 1), softcap=1.5),
    "top left": lambda draw, dtype: dict(causal=True, top_left=True),
    "bias": lambda draw, dtype: dict(bias=jnp.asarray(draw((1, 4, 1, 13)), dtype)),
    "bias, mask, causal": lambda draw, dtype: dict(
        bias=jnp.asarray(draw((2, 4, 9, 13)), dtype), mask=jnp.asarray(draw((2, 1, 9, 13)) < 0.7), causal=True),
    "sink, slopes": lambda draw, dtype: dict(
        sink=jnp.asarray(draw(4), dtype), alibi_slopes=jnp.asarray(np.abs(draw(4)), "float32")),
    "lengths": lambda draw, dtype: dict(
        seqlens_q=jnp.asarray([5, 0], "int32"), seqlens_k=jnp.asarray([7, 3], "int32"), causal=True),
    "dropout": lambda draw, dtype: dict(dropout_p=0.3, dropout_seed=2**63 + 5, dropout_offset=7),
}


def as_numpy(x):
    return np.asarray(x, "float64") if jnp.issubdtype(x.dtype, jnp.floating) else np.asarray(x)


def numpy_options(options):
    return {name: as_numpy(value) if hasattr(value, "dtype") else value for name, value in options.items()}


def agree(got, expected, dtype, what=""):
    got = as_numpy(got)
    assert got.shape == expected.shape, what
    both = np.isfinite(expected)
    assert np.array_equal(np.isfinite(got), both), what
    error = np.abs(got[both] - expected[both]).max(initial=0)
    assert error <= 8 * EPSILON[dtype] * (1 + np.abs(expected[both]).max(initial=0)), (what, error)


def check(q, k, v, options, dtype, attend=cuflash.jax.attention):
    """out, lse and every gradient, through out and through lse, compiled."""
    arrays = {"q": q, "k": k, "v": v, **{name: x for name, x in options.items() if hasattr(x, "dtype")}}
    rest = {name: x for name, x in options.items() if name not in arrays}
    wanted = [name for name in ("q", "k", "v", "bias", "sink") if name in arrays]

    @jax.jit
    def run(arrays, dout, dlse):
        def of(differentiated):
            return attend(**{**arrays, **differentiated}, **rest, return_lse=True)
        outputs, pull = jax.vjp(of, {name: arrays[name] for name in wanted})
        return outputs, pull((dout, dlse))[0]
    expected = _reference.attention(*(as_numpy(x) for x in (q, k, v)), **numpy_options(options))
    draw = np.random.default_rng(1).standard_normal
    dout = jnp.asarray(draw(expected[0].shape), dtype)
    lse_dtype = "float64" if dtype == "float64" else "float32"
    dlse = jnp.asarray(np.where(np.isfinite(expected[1]), draw(expected[1].shape), 0), lse_dtype)
    (out, lse), gradients = run(arrays, dout, dlse)
    assert out.dtype == q.dtype and lse.dtype == lse_dtype
    agree(out, expected[0], dtype, "out")
    agree(lse, expected[1], lse_dtype, "lse")
    exact = _reference.attention_backward(as_numpy(dout), *(as_numpy(x) for x in (q, k, v)), dlse=as_numpy(dlse),
                                          **numpy_options(options))
    for name in wanted:
        agree(gradients[name], getattr(exact, "d" + name), dtype, "d" + name)
