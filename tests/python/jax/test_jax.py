"""cuflash.jax.attention under jit, grad and vmap, against float64 NumPy."""

import re

import numpy as np
import pytest

from jax_cases import OPTIONS, agree, as_numpy, check, place, problem  # noqa: F401 - first: it skips without jax
import jax
import jax.numpy as jnp

import cuflash
import cuflash.jax
from cuflash import _reference


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    (q, k, v), draw = problem("float64")
    check(q, k, v, OPTIONS[name](draw, "float64"), "float64")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["causal", "bias, mask, causal", "sink, slopes"])
def test_types(name, dtype):
    (q, k, v), draw = problem(dtype)
    check(q, k, v, OPTIONS[name](draw, dtype), dtype)


SIZES = [dict(batch=0), dict(len_k=0), dict(len_q=0), dict(heads=3, heads_k=1, len_q=1, len_k=65),
         dict(batch=1, len_q=70, len_k=131, dim=33, dim_v=17)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes(sizes):
    (q, k, v), _ = problem(**sizes)
    check(q, k, v, dict(causal=True), "float32")


def test_layouts():
    (q, k, v), draw = problem("float64")
    options = dict(causal=True, bias=jnp.asarray(draw((2, 4, 9, 13))))

    def attend_bshd(q, k, v, **rest):
        out, lse = cuflash.jax.attention(*(x.swapaxes(1, 2) for x in (q, k, v)), layout="bshd", **rest)
        return out.swapaxes(1, 2), lse
    check(q, k, v, options, "float64", attend_bshd)


def test_packed():
    """Two sequences one after the other, and rows after the last."""
    (q, k, v), _ = problem("float64", batch=1, len_q=10, len_k=14)
    cu_q, cu_k = jnp.asarray([0, 4, 9], "int32"), jnp.asarray([0, 6, 13], "int32")

    def packed(q, k, v):
        return cuflash.jax.attention(*(x[0].swapaxes(0, 1) for x in (q, k, v)), layout="thd", cu_seqlens_q=cu_q,
                                     cu_seqlens_k=cu_k, max_seqlen_q=5, max_seqlen_k=7, causal=True, return_lse=True)
    out, lse = jax.jit(packed)(q, k, v)
    gradients = jax.grad(lambda *x: packed(*x)[0][:9].sum(), argnums=(0, 1, 2))(q, k, v)
    for rows, keys in ((slice(0, 4), slice(0, 6)), (slice(4, 9), slice(6, 13))):
        part = [as_numpy(q)[:, :, rows], as_numpy(k)[:, :, keys], as_numpy(v)[:, :, keys]]
        expected, expected_lse = _reference.attention(*part, causal=True)
        agree(out[rows].swapaxes(0, 1)[None], expected, "float64")
        agree(lse[:, rows][None], expected_lse, "float64")
        exact = _reference.attention_backward(np.ones_like(expected), *part, causal=True)
        for got, name, where in zip(gradients, ("dq", "dk", "dv"), (rows, keys, keys)):
            agree(got[:, :, where], getattr(exact, name), "float64", name)


VMAPS = [dict(q=0, k=0, v=0, sink=0, bias=0), dict(q=0), dict(sink=0), dict(k=1, v=3), dict(bias=2, q=0)]


@pytest.mark.parametrize("axes", VMAPS, ids=str)
def test_vmap(axes):
    """Values and gradients of each slice, for every choice of mapped arrays; the others are shared."""
    (q, k, v), draw = problem("float64")
    arrays = {"q": q, "k": k, "v": v, "sink": jnp.asarray(draw(4)), "bias": jnp.asarray(draw((4, 9, 13)))}
    stacked = {name: jnp.stack([x, -x, x + 1], axes[name]) if name in axes else x for name, x in arrays.items()}

    def value_and_gradients(arrays):
        def loss(a):
            return (cuflash.jax.attention(**a, causal=True) ** 2).sum()
        return jax.value_and_grad(loss)(arrays)
    in_axes = ({name: axes.get(name) for name in arrays},)
    values, gradients = jax.jit(jax.vmap(value_and_gradients, in_axes))(stacked)
    for n in range(3):
        one = {name: jnp.take(x, n, axes[name]) if name in axes else x for name, x in stacked.items()}
        value, gradient = value_and_gradients(one)
        assert np.allclose(values[n], value)
        for name in arrays:
            agree(gradients[name][n], as_numpy(gradient[name]), "float64", name)


def test_nested_vmap_and_gradients_of_what_is_shared():
    (q, k, v), _ = problem("float64")
    many = jnp.stack([jnp.stack([q, -q, q + 1]), jnp.stack([2 * q, q - 1, q / 2])])

    def loss(many, k):
        out = jax.vmap(jax.vmap(lambda x: cuflash.jax.attention(x, k, v)))(many)
        return (out ** 2).sum()
    got = jax.jit(jax.grad(loss, argnums=(0, 1)))(many, k)
    one_by_one = [jax.grad(lambda x, k: (cuflash.jax.attention(x, k, v) ** 2).sum(), argnums=(0, 1))(x, k)
                  for x in many.reshape(6, *q.shape)]
    agree(got[0].reshape(6, *q.shape), np.stack([as_numpy(dq) for dq, _ in one_by_one]), "float64")
    agree(got[1], sum(as_numpy(dk) for _, dk in one_by_one), "float64")


def test_transformations_that_run_it_again():
    """Activation checkpointing, and a loop in the compiled program."""
    (q, k, v), _ = problem("float64", heads_k=4, dim_v=8, len_q=13)

    def layers(q, attend):
        return jax.lax.scan(lambda x, _: (attend(x, k, v), None), q, None, length=3)[0].sum()
    expected = jax.grad(layers)(q, lambda *x: cuflash.jax.attention(*x, causal=True))
    remat = jax.checkpoint(lambda *x: cuflash.jax.attention(*x, causal=True))
    agree(jax.jit(jax.grad(layers), static_argnums=1)(q, remat), as_numpy(expected), "float64")


def test_only_what_is_asked_for_is_computed():
    (q, k, v), _ = problem()

    def written(function, x):
        """The results of each library call in the compiled program of this function."""
        return re.findall(r"'results', '([^']*)'", str(jax.make_jaxpr(function)(x)))
    assert written(lambda k: cuflash.jax.attention(q, k, v), k) == ["out"]
    assert written(lambda k: cuflash.jax.attention(q, k, v, return_lse=True), k) == ["out lse"]
    assert written(jax.grad(lambda k: cuflash.jax.attention(q, k, v).sum()), k) == ["out lse", "dk"]
    sink = jnp.ones(4, "float32")
    assert written(jax.grad(lambda s: cuflash.jax.attention(q, k, v, sink=s).sum()), sink) == ["out lse", "dsink"]


def test_ranks_and_cuflash_attention():
    (q, k, v), _ = problem("float64", batch=1, heads=1, heads_k=1)
    expected, lse = _reference.attention(*(as_numpy(x) for x in (q, k, v)))
    for rank in (2, 3, 4):
        parts = [x.reshape(x.shape[4 - rank:]) for x in (q, k, v)]
        for attend in (cuflash.jax.attention, cuflash.attention):
            got, got_lse = attend(*parts, return_lse=True)
            assert isinstance(got, jax.Array)
            agree(got, expected.reshape(expected.shape[4 - rank:]), "float64")
            agree(got_lse, lse.reshape(lse.shape[4 - rank:]), "float64")


@pytest.mark.parametrize("change, message", [
    (dict(k=jnp.zeros((2, 3, 13, 8), "float32")), "heads"),
    (dict(k=jnp.zeros((2, 2, 13, 7), "float32")), "k: dimension 3"),
    (dict(v=jnp.zeros((2, 2, 13, 6), "float16")), "v: "),
    (dict(q=jnp.zeros((2, 4, 9, 8), "int32")), "q: "),
    (dict(window=(-2, 0)), r"window: got \(-2, 0\)"),
    (dict(softcap=-1.0), "softcap"),
    (dict(bias=jnp.zeros((5, 9, 13), "float32")), "bias"),
    (dict(mask=jnp.zeros(13, bool)), "mask: rank 1"),
    (dict(seqlens_k=jnp.zeros(3, "int32")), "seqlens_k"),
    (dict(layout="hsbd"), "layout"),
    (dict(layout="thd"), "cu_seqlens"),
    (dict(dropout_p=0.1), "dropout_seed"),
    (dict(dropout_p=1.5, dropout_seed=1), "dropout_p"),
], ids=str)
def test_wrong_arguments(change, message):
    """While JAX traces, before anything is compiled."""
    (q, k, v), _ = problem()
    arguments = {"q": q, "k": k, "v": v, **change}
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda: cuflash.jax.attention(**arguments))


def test_wrong_lengths(device):
    """Values are known only when the program runs."""
    if device == "cuda":
        pytest.skip("lengths in device memory are not read by the host; kernels cut them")
    (q, k, v), _ = problem()
    with pytest.raises(RuntimeError, match="seqlens_k: entry 0 is 99"):
        jax.block_until_ready(cuflash.jax.attention(q, k, v, seqlens_k=jnp.asarray([99, 1], "int32")))


def test_derivatives_that_do_not_exist():
    (q, k, v), _ = problem("float64")
    with pytest.raises(ValueError, match="alibi_slopes"):
        jax.grad(lambda s: cuflash.jax.attention(q, k, v, alibi_slopes=s).sum())(jnp.ones(4, "float32"))
    with pytest.raises(Exception, match="(?i)differentiat"):
        jax.grad(lambda q: jax.grad(lambda q: cuflash.jax.attention(q, k, v).sum())(q).sum())(q)
    with pytest.raises(TypeError):
        jax.jvp(lambda q: cuflash.jax.attention(q, k, v), (q,), (q,))
