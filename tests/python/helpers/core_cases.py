"""Random problems for tests of cuflash.attention, and the comparison of results."""

from typing import Any, Dict

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

TYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
# Errors allowed in results, and in gradients relative to the largest one.
ALLOWED = {"float64": (1e-12, 1e-12), "float32": (1e-5, 1e-4), "float16": (4e-3, 2e-2), "bfloat16": (3e-2, 1e-1)}


def normal(rng: np.random.Generator, kind: str, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(TYPES[kind])


def strided(rng: np.random.Generator, kind: str, shape: tuple, style: str) -> np.ndarray:
    """N(0, 1) numbers whose order in memory differs from the shape."""
    b, h, s, d = shape
    if style == "bshd":
        return normal(rng, kind, b, s, h, d).swapaxes(1, 2)
    if style == "slice":  # of a larger array, with a gap after each row
        return normal(rng, kind, b, h + 1, s + 2, d + 3)[:, 1:, 1:-1, 2:-1]
    if style == "broadcast":  # all batch entries share memory
        return np.broadcast_to(normal(rng, kind, 1, h, s, d), shape)
    if style == "reversed":
        return normal(rng, kind, b, h, s, d)[:, :, ::-1]
    if style == "transposed":  # the last dimension has a stride
        return normal(rng, kind, b, h, d, s).swapaxes(2, 3)
    return normal(rng, kind, *shape)


STYLES = ("contiguous", "bshd", "slice", "broadcast", "reversed", "transposed")


@st.composite
def problems(draw: Any) -> Dict[str, Any]:
    """Arguments of cuflash.attention, and "dout" and "kind"."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(sorted(TYPES)))
    batch, heads_k, shared = draw(st.integers(0, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    heads = heads_k * shared
    len_q, len_k = draw(st.integers(0, 40)), draw(st.integers(0, 70))
    dim, dim_v = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    style = st.sampled_from(STYLES)
    arrays = {
        "q": strided(rng, kind, (batch, heads, len_q, dim), draw(style)),
        "k": strided(rng, kind, (batch, heads_k, len_k, dim), draw(style)),
        "v": strided(rng, kind, (batch, heads_k, len_k, dim_v), draw(style)),
        "dout": strided(rng, kind, (batch, heads, len_q, dim_v), draw(style)),
    }
    options: Dict[str, Any] = {
        "causal": draw(st.booleans()),
        "top_left": draw(st.booleans()),
        "window": (draw(st.integers(-1, 30)), draw(st.integers(-1, 30))),
    }
    if draw(st.booleans()):
        options["scale"] = draw(st.floats(-0.5, 0.5))
    if draw(st.booleans()):
        options["softcap"] = draw(st.floats(1.0, 20.0))
    if draw(st.booleans()):
        options["alibi_slopes"] = rng.random((batch, heads) if draw(st.booleans()) else heads).astype(np.float32)
    shape = tuple(draw(st.sampled_from((n, 1))) for n in (batch, heads, len_q)) + (len_k,)
    shape = shape[draw(st.integers(0, 3)) :]
    if draw(st.booleans()):
        options["bias"] = normal(rng, kind, *shape)
    if draw(st.booleans()):
        options["mask"] = rng.random(shape) < 0.8
    if draw(st.booleans()):
        options["sink"] = normal(rng, kind, heads)
    if draw(st.booleans()):
        options["seqlens_q"] = rng.integers(0, len_q + 1, batch).tolist()
    if draw(st.booleans()):
        options["seqlens_k"] = rng.integers(0, len_k + 1, batch)
    if draw(st.booleans()):
        options.update(dropout_p=0.3, dropout_seed=draw(st.integers(0, 2**64 - 1)), dropout_offset=5)
    return {"kind": kind, **arrays, "options": options}


def assert_close(result: np.ndarray, expected: np.ndarray, allowed: float, name: str) -> None:
    """NaN and Inf at the same positions, everything else within allowed, and no scale error."""
    assert result.shape == expected.shape, f"{name}: {result.shape} is not {expected.shape}"
    result = np.asarray(result, np.float64)
    np.testing.assert_array_equal(np.isfinite(result), np.isfinite(expected), err_msg=name)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(result[~finite], expected[~finite], err_msg=name)
    result, expected = result[finite], expected[finite]
    worst = np.abs(result - expected).max(initial=0.0)
    assert worst <= allowed, f"{name}: off by {worst}, allowed are {allowed}"
    # An error in the same direction everywhere hides below the largest one; the slope of result over expected shows it.
    power = float(expected @ expected)
    if power > 1e-3 and expected.size > 256:
        assert abs(float(result @ expected) / power - 1) <= max(2e-3, allowed), f"{name}: scaled"
