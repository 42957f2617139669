"""Inputs for the tests of patch_torch(), and the comparison with PyTorch's own attention in float64."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.nn.functional as F  # noqa: E402

import cuflash  # noqa: E402

ORIGINAL = F.scaled_dot_product_attention


def arrays(device, dtype, q, k=None, v=None):
    """Random q, k, v of these shapes."""
    k = q if k is None else k
    shapes = (q, k, k if v is None else v)
    return [torch.randn(shape, dtype=torch.float64).to(device, dtype).requires_grad_() for shape in shapes]


def keep(*shape):
    """A random mask in which every row has a key."""
    mask = torch.rand(shape) < 0.6
    mask[..., 0] = True
    return mask


def run(function, inputs, dtype, attn_mask=None, **options):
    """out and the gradients of the inputs, and of a mask that requires one, computed in this type."""
    leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in inputs]
    if attn_mask is not None:
        if attn_mask.is_floating_point():
            attn_mask = attn_mask.detach().to(dtype).requires_grad_()
            leaves.append(attn_mask)
        # On a GPU PyTorch refuses a mask whose last dimension is broadcast; cuflash accepts it.
        if function is ORIGINAL and attn_mask.is_cuda:
            attn_mask = attn_mask.expand(*attn_mask.shape[:-1], inputs[1].shape[-2]).contiguous()
        options["attn_mask"] = attn_mask
    out = function(*leaves[:3], **options)
    weight = torch.linspace(-1, 1, max(out.numel(), 1), dtype=torch.float64)[:out.numel()].reshape(out.shape).to(out)
    gradients = torch.autograd.grad((out * weight).sum(), leaves, allow_unused=function is ORIGINAL)
    return [out, *(_of_empty_result(out, leaf) if g is None else g for g, leaf in zip(gradients, leaves))]


def _of_empty_result(out, leaf):
    """The gradient that PyTorch omits: that of a mask, if the result is empty.

    PyTorch 2.15.0 returns such a result early, connected to query, key and value by an addition (its grad_fn is
    AddBackward0) and not to attn_mask, whose gradient is then None; 2.9.1 has zeros in the shape of the mask, and so has
    cuflash, whose gradients are all requested here."""
    assert out.numel() == 0, "a gradient of PyTorch's is missing"
    return torch.zeros_like(leaf)


def check(inputs, dtype, **options):
    """Checks that cuflash computed the call, with at most twice the error of PyTorch in the same type."""
    exact = run(ORIGINAL, inputs, torch.float64, **options)
    theirs = run(ORIGINAL, inputs, dtype, **options)
    with cuflash.patch_torch() as patch:
        ours = run(F.scaled_dot_product_attention, inputs, dtype, **options)
    assert patch.counts == {"cuflash": 1}
    floor = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    # A gradient that cancels to 0 (with a single key) keeps the rounding of its terms: one scale for all.
    scale = 1 + max(c.detach().abs().max().item() if c.numel() else 0.0 for c in exact)
    for name, a, b, c in zip(("out", "dq", "dk", "dv", "dmask"), ours, theirs, exact):
        assert a.shape == b.shape and a.dtype == b.dtype, name
        if a.numel():
            error, allowed = (a.double() - c).abs().max(), (b.double() - c).abs().max()
            assert error <= 2 * allowed + floor * scale, name
