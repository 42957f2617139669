"""cuflash.attention_with_cache against its definition in float64, with all options crossed."""

import os
import random

import kvcache_cases
import numpy as np
import pytest

import cuflash
from random_cases import examples

try:
    import torch
except ImportError:
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")


def numpy_type(kind):
    if kind == "bfloat16":
        return pytest.importorskip("ml_dtypes").bfloat16
    return np.dtype(kind)


def run_numpy(case, given):
    typed = numpy_type(case.kind)
    given = {name: value.astype(numpy_type(kvcache_cases.type_of(case, name) or value.dtype))
             if isinstance(value, np.ndarray) else value for name, value in given.items()}
    if given["v_cache"] is None:
        given["v_cache"] = given["k_cache"][..., : case.dim_v]
    out, lse = cuflash.attention_with_cache(**given, return_lse=True)
    assert out.dtype == typed and lse.dtype == (np.float64 if case.kind == "float64" else np.float32)
    return out, lse, given["k_cache"], given["v_cache"]


def to_torch(value, kind, device):
    dtype = getattr(torch, kind) if kind else None
    return torch.from_numpy(np.ascontiguousarray(value)).to(device=device, dtype=dtype)


def run_torch(case, given, device):
    given = {name: to_torch(value, kvcache_cases.type_of(case, name), device)
             if isinstance(value, np.ndarray) else value for name, value in given.items()}
    if given["v_cache"] is None:
        given["v_cache"] = given["k_cache"][..., : case.dim_v]
    out, lse = cuflash.attention_with_cache(**given, return_lse=True)
    assert out.dtype == given["q"].dtype and out.device == given["q"].device
    return tuple(x.double().cpu().numpy() for x in (out, lse, given["k_cache"], given["v_cache"]))


def verify(case, given, out, lse, k_cache, v_cache):
    outs, lses = kvcache_cases.sequences(case, given, np.asarray(out, np.float64), np.asarray(lse, np.float64))
    layout = given["layout"]
    kvcache_cases.check(case, outs, lses, kvcache_cases.in_rows(k_cache, layout),
                        kvcache_cases.in_rows(v_cache, layout))


def forms(seed):
    choose = random.Random(-seed)
    return choose.choice(["bhsd", "bshd"]), choose.random() < 0.4


CASES = range(examples(250))


@pytest.mark.parametrize("begin", CASES[::25])
def test_random_problems_of_numpy(begin):
    for seed in range(begin, min(begin + 25, len(CASES))):
        case = kvcache_cases.draw(seed)
        given = kvcache_cases.arguments(case, *forms(seed), seed)
        given["num_splits"] = seed % 4
        try:
            verify(case, given, *run_numpy(case, given))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {describe(case, given)}: {error}") from error


@needs_torch
@pytest.mark.parametrize("begin", CASES[::25])
def test_random_problems_of_torch(begin, device):
    for seed in range(begin, min(begin + 25, len(CASES))):
        case = kvcache_cases.draw(10_000 + seed)
        given = kvcache_cases.arguments(case, *forms(seed), seed)
        try:
            verify(case, given, *run_torch(case, given, device))
        except AssertionError as error:
            raise AssertionError(f"seed {10_000 + seed}, {describe(case, given)}: {error}") from error


def describe(case, given):
    shapes = {name: list(x.shape) if isinstance(x, np.ndarray) and x.ndim > 1 else x for name, x in given.items()}
    return f"{case.kind}, rows {case.rows}, new {[case.new(b) for b in range(case.batch)]}, {shapes}"


def test_the_cases_cover_what_they_are_meant_to():
    cases = [kvcache_cases.draw(seed) for seed in CASES]
    sizes = {case.k_cache.shape[1] for case in cases if case.table is not None}
    assert {1, 3, 16, 256} <= sizes
    for what in ("k_new", "table", "entry", "leftpad", "rotary", "slopes", "sink"):
        found = [getattr(case, what) is not None for case in cases]
        assert any(found) and not all(found), what
    assert any(case.v_cache is None and case.k_new for case in cases)
    hidden = [case for case in cases if case.table is not None and case.options["window"][0] >= 0
              and np.isnan(case.k_cache[..., 0, 0]).sum() > case.k_cache.shape[1] * 3]
    assert hidden, "no page is hidden by a window"


@pytest.mark.parametrize("fault", ["row too far", "missing rotary", "scaled"])
def test_the_comparison_has_teeth(fault):
    """The comparison rejects the results of plausible mistakes."""
    found = False
    for seed in CASES:
        case = kvcache_cases.draw(seed)
        if case.rotary is None or case.new(0) == 0 or case.rows[0] == case.pad(0) or len(case.q[0]) == 0:
            continue
        outs, lses = case.answer()
        k, v = case.caches_after()
        kvcache_cases.check(case, outs, lses, k, v)
        if fault == "row too far":
            wrong = kvcache_cases.draw(seed)
            wrong.rows[0] -= 1
            k, v = wrong.caches_after()
        elif fault == "missing rotary":
            wrong = kvcache_cases.draw(seed)
            wrong.rotary = None
            k, v = wrong.caches_after()
        else:
            outs = [out * 1.5 for out in outs]
        with pytest.raises(AssertionError):
            kvcache_cases.check(case, outs, lses, k, v)
        found = True
        break
    assert found


def small(kind=np.float32, batch=2, rows=8, heads=2, dim=4):
    rng = np.random.default_rng(0)
    return {"q": rng.standard_normal((batch, 2 * heads, 1, dim)).astype(kind),
            "k_cache": rng.standard_normal((batch, heads, rows, dim)).astype(kind),
            "v_cache": rng.standard_normal((batch, heads, rows, dim)).astype(kind)}


def test_without_lengths_the_whole_cache_is_meant():
    given = small()
    q, k, v = given.values()
    np.testing.assert_allclose(cuflash.attention_with_cache(q, k, v), cuflash.attention(q, k, v), atol=1e-6)
    pages = cuflash.attention_with_cache(q, k, v, block_table=np.int32([[0, 1], [1, 0]]))
    both = [np.concatenate([x[0], x[1]], 1) for x in (k, v)], [np.concatenate([x[1], x[0]], 1) for x in (k, v)]
    expected = cuflash.attention(q, np.stack([both[0][0], both[1][0]]), np.stack([both[0][1], both[1][1]]))
    np.testing.assert_allclose(pages, expected, atol=1e-6)


def test_lengths_in_every_form():
    given = small()
    expected = cuflash.attention_with_cache(**given, cache_seqlens=np.int32([5, 5]))
    for lengths in (5, np.int64(5), [5, 5], np.array([5, 5])):
        np.testing.assert_array_equal(cuflash.attention_with_cache(**given, cache_seqlens=lengths), expected)


@needs_torch
def test_lengths_in_every_form_of_torch(device):
    given = {name: torch.from_numpy(x).to(device) for name, x in small().items()}
    five = torch.tensor(5, dtype=torch.int32, device=device)
    expected = cuflash.attention_with_cache(**given, cache_seqlens=five.repeat(2))
    for lengths in (5, [5, 5], np.int32([5, 5]), np.array([5, 5]), np.int32(5), five):
        assert torch.equal(cuflash.attention_with_cache(**given, cache_seqlens=lengths), expected)


@needs_torch
@pytest.mark.parametrize("lengths", ([1.5, 2.0], [2**32 + 1, 1], [1.5, 2]))
def test_lengths_of_torch_that_are_none(lengths):
    given = {name: torch.from_numpy(x) for name, x in small().items()}
    with pytest.raises(ValueError, match="^cache_seqlens: "):
        cuflash.attention_with_cache(**given, cache_seqlens=lengths)


def test_a_fixed_number_of_splits_makes_rows_independent_of_the_batch():
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((5, h, s, 32)).astype(np.float32) for h, s in ((8, 1), (2, 700), (2, 700)))
    lengths = np.int32([700, 3, 129, 500, 64])
    for splits in (1, 3):
        together = cuflash.attention_with_cache(q, k, v, cache_seqlens=lengths, num_splits=splits)
        for b in range(5):
            alone = cuflash.attention_with_cache(q[b : b + 1], k[b : b + 1], v[b : b + 1],
                                                 cache_seqlens=lengths[b : b + 1], num_splits=splits)
            np.testing.assert_array_equal(alone[0], together[b])


def test_a_pool_goes_straight_into_the_call():
    """Tables and lengths of a PagePool for two sequences with a common prefix, against attention on their tokens."""
    rng = np.random.default_rng(0)
    pool = cuflash.PagePool(pages=16, page_size=4, max_sequences=4)
    k_cache, v_cache = (np.full((16, 4, 2, 8), np.nan, np.float32) for _ in range(2))
    held = {}

    def step(sequences, tokens):
        k, v = (rng.standard_normal((len(sequences), tokens, 2, 8)).astype(np.float32) for _ in range(2))
        lengths = pool.lengths(sequences)
        for sequence in sequences:
            room = pool.append(sequence, tokens)
            assert room
            if room.copy:
                for cache in (k_cache, v_cache):
                    cache[room.copy.destination, : room.copy.tokens] = cache[room.copy.source, : room.copy.tokens]
        q = rng.standard_normal((len(sequences), tokens, 4, 8)).astype(np.float32)
        out = cuflash.attention_with_cache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True, layout="bshd",
                                           block_table=pool.block_table(sequences))
        for b, sequence in enumerate(sequences):
            before = held.get(sequence, [np.empty((0, 2, 8), np.float32)] * 2)
            held[sequence] = [np.concatenate([a, x[b]]) for a, x in zip(before, (k, v))]
            expected = cuflash.attention(q[b].swapaxes(0, 1), *(x.swapaxes(0, 1) for x in held[sequence]), causal=True)
            np.testing.assert_allclose(out[b].swapaxes(0, 1), expected, atol=1e-5)

    first = pool.start()
    step([first], 6)
    second = pool.fork(first)
    held[second] = held[first]
    for tokens in (1, 3, 1):
        step([first, second], tokens)
    pool.check()


def test_mla_appends_once():
    """v is the first part of each key: one cache, one append."""
    rng = np.random.default_rng(0)
    cache = np.full((1, 1, 8, 12), np.nan, np.float32)
    new = rng.standard_normal((1, 1, 5, 12)).astype(np.float32)
    q = rng.standard_normal((1, 4, 5, 12)).astype(np.float32)
    out = cuflash.attention_with_cache(q, cache, cache[..., :8], new, cache_seqlens=0, causal=True)
    np.testing.assert_allclose(out, cuflash.attention(q, new, new[..., :8], causal=True), atol=1e-6)
    np.testing.assert_array_equal(cache[:, :, :5], new)
    assert np.isnan(cache[:, :, 5:]).all()


def test_a_cache_that_is_only_read_may_be_read_only():
    given = small()
    for name in ("k_cache", "v_cache"):
        given[name].flags.writeable = False
    cuflash.attention_with_cache(**given)
    with pytest.raises(ValueError, match="^k_cache: is read-only"):
        cuflash.attention_with_cache(**given, k=given["q"][:, :2], v=given["q"][:, :2], cache_seqlens=0)


NEW = np.ones((2, 2, 1, 4), np.float32)
I = np.int32
REFUSED = [
    ({"q": NEW.tolist()}, TypeError, "q: list is not an array"),
    ({"k_cache": NEW.tolist()}, TypeError, "k_cache: list is not a numpy array"),
    ({"q": np.ones((2, 3, 1, 4), np.float32)}, ValueError, "q: has 3 heads, must be a multiple of the 2 heads of k_cache"),
    ({"v_cache": NEW}, ValueError, "v_cache: dimension 2"),
    ({"k_cache": np.ones((2, 2, 8, 4))}, ValueError, "k_cache: type f64"),
    ({"cache_seqlens": [9, 1]}, ValueError, "cache_seqlens: entry 0 is 9, must be between 0 and 8"),
    ({"cache_seqlens": [1]}, ValueError, "cache_seqlens: "),
    ({"cache_seqlens": [1.0, 2.0]}, ValueError, "cache_seqlens: has elements of float64"),
    ({"k": NEW, "v": NEW}, ValueError, "cache_seqlens: is needed with k"),
    ({"k": NEW, "v": NEW, "cache_seqlens": [8, 1]}, ValueError, "k: appending 1 rows to the 8 of sequence 0"),
    ({"k": NEW, "cache_seqlens": 1}, ValueError, "v: "),
    ({"v": NEW, "cache_seqlens": 1}, ValueError, "v: was given without k"),
    ({"k": NEW, "v": NEW, "cache_seqlens": 1, "cache_batch_idx": [0, 0]}, ValueError,
     "cache_batch_idx: entries 0 and 1"),
    ({"cache_batch_idx": [0, 2]}, ValueError, "cache_batch_idx: entry 1 is 2"),
    ({"cache_batch_idx": [0, 1], "block_table": I([[0], [1]])}, ValueError, "cache_batch_idx: cannot be combined"),
    ({"cache_leftpad": [3, 0], "cache_seqlens": [2, 2]}, ValueError, "cache_leftpad: entry 0 is 3"),
    ({"block_table": I([[0], [2]]), "cache_seqlens": 3}, ValueError, r"block_table: entry \[1, 0\] is 2"),
    ({"block_table": np.ones((2, 1))}, ValueError, "block_table: has elements of float64"),
    ({"rotary_cos": np.ones((4, 2), np.float32)}, ValueError, "rotary_sin"),
    ({"rotary_cos": np.ones((4, 2), I), "rotary_sin": np.ones((4, 2), I)}, ValueError, "rotary_cos"),
    ({"rotary_cos": np.ones((4, 2), np.float32), "rotary_sin": np.ones((4, 2), np.float32)}, ValueError,
     "rotary_cos: has 4 positions, but sequence 0 needs 8"),
    ({"k_cache": NEW[0]}, ValueError, "k_cache: has 3 dimensions; a cache has 4"),
    ({"q": NEW[0, 0]}, ValueError, "q: has 2 dimensions"),
    ({"q": NEW[0]}, ValueError, "q: has rank 3"),
    ({"block_table": [[2**40]]}, ValueError, "block_table: .* is not between"),
    ({"num_splits": -1}, ValueError, "num_splits: got -1"),
    ({"layout": "thd2"}, ValueError, "layout: got 'thd2'"),
    ({"window": (-2, 0)}, ValueError, "window: got"),
    ({"bias": NEW}, TypeError, "bias"),
]


@pytest.mark.parametrize("change, error, words", REFUSED, ids=[words for _, _, words in REFUSED])
def test_refusals_write_nothing(change, error, words):
    given = {**small(), **change}
    before = {name: np.copy(given[name]) for name in ("k_cache", "v_cache")}
    with pytest.raises(error, match=words):
        cuflash.attention_with_cache(**given)
    for name, array in before.items():
        np.testing.assert_array_equal(given[name], array)


def test_jax_arrays_are_refused_with_the_way_out():
    jnp = pytest.importorskip("jax.numpy")
    given = {name: jnp.asarray(x) for name, x in small().items()}
    with pytest.raises(TypeError, match="q: is an array of jax, .*numpy.from_dlpack"):
        cuflash.attention_with_cache(**given)
    with pytest.raises(TypeError, match="o_a: is an array of jax"):
        cuflash.merge_states(given["q"], given["q"][..., 0], given["q"], given["q"][..., 0])


def test_explain_names_the_backend():
    text = cuflash.explain_with_cache(**small(), cache_seqlens=3)
    assert "attend_cache" in text and "cpu" in text.lower()


def test_importing_needs_no_framework_and_numpy_no_torch():
    code = """
import sys, cuflash, numpy
q = numpy.ones((1, 1, 2, 4), numpy.float32)
cuflash.attention_with_cache(q, q, q)  # only reads its caches
cuflash.merge_states(q, q[..., 0], q, q[..., 0])
assert not {"torch", "jax"} & set(sys.modules)
"""
    import subprocess
    import sys

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=os.environ)
    assert result.returncode == 0, result.stderr
