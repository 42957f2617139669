"""Dropout: which scores it drops, and where its seeds come from."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch_reference  # noqa: E402
from cuflash._torch import attention  # noqa: E402
from cuflash.flash_attn_interface import flash_attn_func  # noqa: E402


def problem(device, dtype=torch.float32, length=24):
    return [torch.randn(1, length, 2, 8, device=device, dtype=dtype) for _ in range(3)]


def test_manual_seed_repeats_it(device):
    inputs = problem(device)
    torch.manual_seed(5)
    first, second = flash_attn_func(*inputs, 0.5), flash_attn_func(*inputs, 0.5)
    torch.manual_seed(5)
    assert torch.equal(first, flash_attn_func(*inputs, 0.5)) and torch.equal(second, flash_attn_func(*inputs, 0.5))
    assert not torch.equal(first, second)


def test_no_dropout_draws_nothing(device):
    inputs = problem(device)
    torch.manual_seed(5)
    expected = torch.rand(4, device=device)
    torch.manual_seed(5)
    flash_attn_func(*inputs)
    flash_attn_func(*inputs, 0.5, dropout_seed=7)
    assert torch.equal(torch.rand(4, device=device), expected)


@pytest.mark.parametrize("seed", (0, 1, 2**40 + 3, 2**64 - 1))
@pytest.mark.parametrize("offset", (0, 8, 2**63 + 1))
def test_seed_and_offset_decide(seed, offset, device):
    """A seed as numbers and as a tensor gives the same bits, which are those of Philox."""
    inputs = problem(device, torch.float64)
    out = attention(*inputs, layout="bshd", dropout_p=0.3, dropout_seed=seed, dropout_offset=offset)
    expected, _ = torch_reference.attention(*inputs, dtype=torch.float64, dropout_p=0.3, dropout_seed=(seed, offset))
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)
    bits = torch.tensor([word - 2**64 if word >= 2**63 else word for word in (seed, offset)])
    assert torch.equal(attention(*inputs, layout="bshd", dropout_p=0.3, dropout_seed=bits), out)


def test_share_that_is_dropped(device):
    """The share is not rounded to 1/256: with p = 0.001, 8 bits would drop nothing or four times as much."""
    q = torch.zeros(4, 512, 4, 8, device=device)
    ones = torch.ones(4, 512, 4, 8, device=device)
    for p in (0.001, 0.1, 0.5):
        kept = flash_attn_func(q, q, ones, p, dropout_seed=1).mean().item() * (1 - p)
        deviation = (p * (1 - p) / (4 * 4 * 512 * 512)) ** 0.5
        assert abs(kept - (1 - p)) < 5 * deviation + 1e-6


def test_gradient_has_the_same_mask(device):
    q, k, v = problem(device, torch.float64)
    v.requires_grad_()
    out = flash_attn_func(q, k, v, 0.5)
    (dv,) = torch.autograd.grad(out, v, torch.ones_like(out))
    torch.testing.assert_close((dv * v).sum(), out.sum())  # out is linear in v
