"""cuflash.summarize_mask: calls that are given a summary equal those that are given the mask."""

import numpy as np
import pytest

import cuflash

QUERIES, KEYS = 70, 600
MASKS = {
    "pairs": lambda rng: rng.random((2, 4, QUERIES, KEYS)) < 0.5,
    "documents": lambda rng: np.arange(QUERIES)[:, None] // 20 == np.arange(KEYS) // 20,
    "of keys": lambda rng: rng.random((2, 1, 1, KEYS)) < 0.5,
    "of queries": lambda rng: np.broadcast_to(rng.random((4, QUERIES, 1)) < 0.5, (4, QUERIES, KEYS)),
    "of heads": lambda rng: np.broadcast_to(rng.random((1, 4, 1, KEYS)) < 0.5, (2, 4, QUERIES, KEYS)),
    "nothing": lambda rng: np.zeros((QUERIES, KEYS), bool),
    "everything": lambda rng: np.ones((1, KEYS), bool),
    "other bytes than 1": lambda rng: rng.integers(0, 3, (QUERIES, KEYS), np.uint8).view(bool),
    "columns of a larger mask": lambda rng: (rng.random((QUERIES, KEYS + 5)) < 0.5)[:, 3:KEYS + 3],
}


def problem(rng):
    return [rng.standard_normal((2, heads, length, 16)).astype(np.float32)
            for heads, length in ((4, QUERIES), (2, KEYS), (2, KEYS))]


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("causal", [False, True])
def test_a_summary_equals_its_mask(name, causal):
    rng = np.random.default_rng(0)
    q, k, v = problem(rng)
    mask = MASKS[name](rng)
    summary = cuflash.summarize_mask(mask)
    results = [cuflash.attention(q, k, v, mask=given, causal=causal, return_lse=True) for given in (mask, summary)]
    for from_mask, from_summary in zip(*results):
        np.testing.assert_array_equal(from_mask, from_summary)
    gradients = [cuflash.attention_backward(results[0][0], q, k, v, *results[0], mask=given, causal=causal)
                 for given in (mask, summary)]
    for from_mask, from_summary in zip(*gradients):
        np.testing.assert_array_equal(from_mask, from_summary)


def test_repeated_dimensions_stay_small():
    mask = np.broadcast_to(np.ones((3, 1, 1, KEYS), bool), (3, 4, QUERIES, KEYS))
    summary = cuflash.summarize_mask(mask)
    assert summary.shape == (3, 1, 1, KEYS)
    assert repr(summary) == "MaskSummary(shape=(3, 1, 1, 600))"
    assert summary.words.nbytes < mask[:, 0, 0].nbytes


def test_the_summary_is_a_copy():
    rng = np.random.default_rng(0)
    q, k, v = problem(rng)
    mask = MASKS["pairs"](rng)
    expected = cuflash.attention(q, k, v, mask=mask)
    summary = cuflash.summarize_mask(mask, num_threads=1)
    mask[:] = False
    np.testing.assert_array_equal(cuflash.attention(q, k, v, mask=summary), expected)


@pytest.mark.parametrize("shape, message", [
    ((QUERIES, KEYS - 1), r"summary of a mask \[1, 1, 70, 599\], but the call has 600 keys"),
    ((3, 1, QUERIES, KEYS), r"mask_summary: .*\[3, 1, 70, 600\] must be \[2 or 1, 4 or 1, 70 or 1, 600\]"),
    ((1, 2, QUERIES, KEYS), r"mask_summary: .*\[1, 2, 70, 600\] must be"),
    ((QUERIES + 1, KEYS), r"mask_summary: .*\[1, 1, 71, 600\] must be"),
])
def test_the_summary_of_another_mask_is_rejected(shape, message):
    q, k, v = problem(np.random.default_rng(0))
    summary = cuflash.summarize_mask(np.ones(shape, bool))
    with pytest.raises(ValueError, match=message):
        cuflash.attention(q, k, v, mask=summary)


def test_messages():
    with pytest.raises(TypeError, match="mask: list is not an array"):
        cuflash.summarize_mask([True])
    with pytest.raises(ValueError, match="mask: has 5 dimensions"):
        cuflash.summarize_mask(np.ones((1,) * 5, bool))
    with pytest.raises(ValueError, match="mask: "):
        cuflash.summarize_mask(np.ones((2, 2), np.float32))
    with pytest.raises(ValueError, match="num_threads"):
        cuflash.summarize_mask(np.ones((2, 2), bool), num_threads=-1)
