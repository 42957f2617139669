"""patch_torch() with shapes, masks, groups of heads and strides crossed."""

import pytest

from sdpa_cases import ORIGINAL, check  # first: it skips without PyTorch
import torch
import torch.nn.functional as F

pytest.importorskip("hypothesis", reason="Hypothesis is not installed")
from random_cases import examples  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402


def laid_out(generator, shape, order):
    """Random numbers of this shape, whose last two or three dimensions have another order in memory."""
    if order == "rows behind heads" and len(shape) >= 3:
        return torch.randn((*shape[:-3], shape[-2], shape[-3], shape[-1]), generator=generator).transpose(-2, -3)
    if order == "columns behind rows":
        return torch.randn((*shape[:-2], shape[-1], shape[-2]), generator=generator).transpose(-1, -2)
    if order == "every second":
        return torch.randn((*shape[:-1], 2 * shape[-1]), generator=generator)[..., ::2]
    return torch.randn(shape, generator=generator)


@settings(max_examples=examples(60))
@given(st.data())
def test_random(device, data):
    def draw(low, high):
        return data.draw(st.integers(low, high))
    generator = torch.Generator().manual_seed(draw(0, 999))
    leading, heads_k, group = [draw(1, 3) for _ in range(draw(0, 3))], draw(1, 2), draw(1, 3)
    len_q, len_k, dim, dim_v = draw(1, 20), draw(1, 20), draw(1, 20), draw(1, 20)
    orders = st.sampled_from(["plain", "rows behind heads", "columns behind rows", "every second"])
    shared = [extent if data.draw(st.booleans()) else 1 for extent in leading]
    shapes = ((*leading, heads_k * group, len_q, dim), (*shared, heads_k, len_k, dim), (*shared, heads_k, len_k, dim_v))
    inputs = [laid_out(generator, shape, data.draw(orders)).to(device) for shape in shapes]

    options = {"enable_gqa": True} if group > 1 and heads_k > 1 else {}
    options["scale"] = data.draw(st.sampled_from([None, 0.4]))
    kind = data.draw(st.sampled_from(["none", "causal", "bool", "float"]))
    if kind == "causal":
        options["is_causal"] = True
    elif kind != "none":
        whole = (*leading, heads_k * group, len_q, len_k)
        shape = [extent if data.draw(st.booleans()) else 1 for extent in whole][draw(0, len(whole) - 2):]
        mask = laid_out(generator, shape, data.draw(orders))
        options["attn_mask"] = (mask > -0.8 if kind == "bool" else mask).to(device)
    check(inputs, data.draw(st.sampled_from([torch.float64, torch.float32])), **options)
    assert F.scaled_dot_product_attention is ORIGINAL
