"""cuflash.jax.attention with all options crossed, against float64 NumPy."""

import numpy as np
import pytest

from jax_cases import check, place, problem  # noqa: F401
import jax.numpy as jnp

pytest.importorskip("hypothesis", reason="Hypothesis is not installed")
from random_cases import examples  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402


@st.composite
def random_problems(draw):
    """Sizes and options, all crossed."""
    heads_k = draw(st.integers(1, 3))
    sizes = dict(batch=draw(st.integers(1, 3)), heads=heads_k * draw(st.integers(1, 3)), heads_k=heads_k,
                 len_q=draw(st.integers(1, 20)), len_k=draw(st.integers(1, 20)), dim=draw(st.integers(1, 20)),
                 dim_v=draw(st.integers(1, 20)), seed=draw(st.integers(0, 99)))
    (q, k, v), normal = problem("float64", **sizes)

    def pairs():
        full = (sizes["batch"], sizes["heads"], sizes["len_q"], sizes["len_k"])
        shape = [n if draw(st.booleans()) else 1 for n in full[:3]] + [sizes["len_k"]]
        return normal(shape[draw(st.integers(0, 2)):] if draw(st.booleans()) else shape)
    side = st.integers(-1, 9)
    options = dict(causal=draw(st.booleans()), top_left=draw(st.booleans()), window=(draw(side), draw(side)),
                   softcap=draw(st.sampled_from([0.0, 2.0])), scale=draw(st.sampled_from([None, 0.2])))
    lengths = {"seqlens_q": sizes["len_q"], "seqlens_k": sizes["len_k"]}
    make = {"bias": lambda: jnp.asarray(pairs()), "mask": lambda: jnp.asarray(pairs() < 0.8),
            "sink": lambda: jnp.asarray(normal(sizes["heads"])),
            "alibi_slopes": lambda: jnp.asarray(np.abs(normal((sizes["batch"], sizes["heads"]))), "float32"),
            **{name: lambda n=n: jnp.asarray([draw(st.integers(0, n)) for _ in range(sizes["batch"])], "int32")
               for name, n in lengths.items()}}
    return (q, k, v), {**options, **{name: f() for name, f in make.items() if draw(st.booleans())}}


@settings(max_examples=examples(12))
@given(st.data())
def test_random(data):
    (q, k, v), options = data.draw(random_problems())
    check(q, k, v, options, "float64")
