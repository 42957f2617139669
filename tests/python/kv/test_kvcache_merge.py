"""cuflash.merge_states: results over two parts of the keys become the result over all of them."""

import numpy as np
import pytest

import cuflash

try:
    import torch
except ImportError:
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
ALLOWED = {"float64": 1e-12, "float32": 2e-6, "float16": 2e-3}


def parts(kind, cut=13, seed=0):
    """Results over the first keys, the others, and all. Some queries see no key of one part, or none at all."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((2, h, s, 8)).astype(kind) for h, s in ((4, 5), (2, 30), (2, 30)))
    mask = rng.random((2, 4, 5, 30)) < 0.5
    mask[:, :, 0, :cut], mask[:, :, 1, cut:], mask[:, :, 2] = False, False, False
    return [cuflash.attention(q, k[:, :, keys], v[:, :, keys], mask=mask[..., keys], return_lse=True)
            for keys in (slice(0, cut), slice(cut, 30), slice(0, 30))]


@pytest.mark.parametrize("kind", ALLOWED)
def test_two_parts_are_the_whole(kind):
    a, b, (out, lse) = parts(kind)
    merged, merged_lse = cuflash.merge_states(*a, *b)
    assert merged.dtype == out.dtype and merged_lse.dtype == lse.dtype
    np.testing.assert_allclose(merged, out, atol=ALLOWED[kind], rtol=0)
    np.testing.assert_allclose(merged_lse, lse, atol=1e-12 if kind == "float64" else 1e-5, rtol=0)
    assert np.isneginf(merged_lse[:, :, 2]).all() and (merged[:, :, 2] == 0).all()
    np.testing.assert_array_equal(merged[:, :, 0], b[0][:, :, 0])


@pytest.mark.parametrize("into", ["a", "b", "other", "float32"])
def test_results_are_written_into_given_arrays(into):
    a, b, _ = parts("float16" if into == "float32" else "float32")
    expected = cuflash.merge_states(*a, *b)
    target = {"a": a, "b": b, "other": tuple(np.full_like(x, np.nan) for x in a),
              "float32": (np.empty(a[0].shape, np.float32), np.empty_like(a[1]))}[into]
    result = cuflash.merge_states(*a, *b, out=target)
    assert result[0] is target[0] and result[1] is target[1]
    np.testing.assert_allclose(result[0], expected[0], atol=0 if into != "float32" else 1e-3)
    np.testing.assert_array_equal(result[1], expected[1])


def test_layouts():
    a, b, _ = parts("float32")
    expected, expected_lse = cuflash.merge_states(*a, *b)
    rows, lse = cuflash.merge_states(a[0].swapaxes(1, 2), a[1], b[0].swapaxes(1, 2), b[1], layout="bshd")
    np.testing.assert_array_equal(rows.swapaxes(1, 2), expected)
    np.testing.assert_array_equal(lse, expected_lse)
    packed, lse = cuflash.merge_states(a[0][0].swapaxes(0, 1), a[1][0], b[0][0].swapaxes(0, 1), b[1][0])
    np.testing.assert_array_equal(packed.swapaxes(0, 1), expected[0])
    np.testing.assert_array_equal(lse, expected_lse[0])


@pytest.mark.parametrize("change, words", [
    (lambda a, b: (a[0], a[1], b[0][:, :1], b[1]), "o_b: dimension 1"),
    (lambda a, b: (a[0], a[1][:1], *b), "lse_a: "),
    (lambda a, b: (a[0].astype(np.int32), a[1], *b), "o_a: type i32"),
    (lambda a, b: (*a, b[0].astype(np.float64), b[1]), "o_b: type f64"),
    (lambda a, b: (*a, *b, (a[0][..., :4], a[1])), "out: dimension 3"),
])
def test_refusals(change, words):
    a, b, _ = parts("float32")
    with pytest.raises(ValueError, match=words):
        cuflash.merge_states(*change(a, b))


@needs_torch
class TestTorch:
    def parts(self, device):
        return [[torch.from_numpy(x).to(device) for x in part] for part in parts("float32")]

    def test_two_parts_are_the_whole(self, device):
        a, b, (out, lse) = self.parts(device)
        merged, merged_lse = cuflash.merge_states(*a, *b)
        torch.testing.assert_close(merged, out, atol=2e-6, rtol=0)
        torch.testing.assert_close(merged_lse, lse, atol=1e-5, rtol=0)
        version = a[0]._version
        assert cuflash.merge_states(*a, *b, out=a)[0] is a[0] and a[0]._version > version
        assert torch.equal(a[0], merged) and torch.equal(a[1], merged_lse)

    def test_operator(self, device):
        a, b, _ = self.parts(device)
        torch.library.opcheck(torch.ops.cuflash.merge_states.default, (*a, *b, "bhsd", 0))

    @pytest.mark.parametrize("into", [False, True])
    def test_compiled(self, device, into):
        a, b, _ = self.parts(device)
        expected = cuflash.merge_states(*a, *b)

        @torch.compile(fullgraph=True, backend="aot_eager")
        def merge(o_a, lse_a, o_b, lse_b):
            return cuflash.merge_states(o_a, lse_a, o_b, lse_b, out=(o_a, lse_a) if into else None)

        torch.testing.assert_close(merge(*a, *b), expected, atol=0, rtol=0)
        assert torch.equal(a[0], expected[0]) == into

    def test_gradients_are_refused(self, device):
        a, b, _ = self.parts(device)
        a[0].requires_grad_()
        merged, _ = cuflash.merge_states(*a, *b)
        with pytest.raises(RuntimeError, match="merge_states has no gradient"):
            merged.sum().backward()
        with torch.no_grad():
            assert not cuflash.merge_states(*a, *b)[0].requires_grad
