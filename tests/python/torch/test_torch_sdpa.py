"""Against PyTorch in the same type: at most twice its error.

PyTorch's is that of scaled_dot_product_attention or that of the formula written out, whichever is larger: which kernel
the former takes, and what that one keeps in f32, depends on machine and version.
"""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from cuflash._torch import attention  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention as sdpa  # noqa: E402

# name: (arguments of sdpa, arguments of attention, query heads per key head)
CASES = {
    "plain": ({}, {}, 1),
    "causal": (dict(is_causal=True), dict(causal=True, top_left=True), 1),
    "scale": (dict(scale=0.2), dict(scale=0.2), 1),
    "shared heads": (dict(enable_gqa=True), {}, 4),
    "mask": ("mask", "mask", 1),
    "bias": ("bias", "bias", 1),
}


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float32), ids=str)
@pytest.mark.parametrize("shape", ((2, 4, 65, 97, 64), (1, 4, 17, 200, 128)), ids=str)
@pytest.mark.parametrize("case", CASES)
def test_error_compared_with_sdpa(case, shape, dtype, device):
    theirs, ours, group = CASES[case]
    batch, heads, len_q, len_k, size = shape
    generator = torch.Generator().manual_seed(hash(shape) % 2**31)

    def random(*shape):
        return torch.randn(*shape, generator=generator).to(device, dtype).requires_grad_()

    inputs = [random(batch, heads // (group if index else 1), len_k if index else len_q, size) for index in range(3)]
    dout = torch.randn(batch, heads, len_q, size, generator=generator).to(device, dtype)
    if theirs == "mask":
        mask = torch.rand(len_q, len_k, generator=generator) < 0.8
        mask[:, 0] = True  # SDPA gives NaN for a row that sees nothing
        theirs, ours = dict(attn_mask=mask.to(device)), dict(mask=mask.to(device))
    elif theirs == "bias":
        bias = random(batch, heads, len_q, len_k).detach()  # with a gradient, SDPA would compute all in f32
        theirs, ours = dict(attn_mask=bias), dict(bias=bias)

    actual = run(lambda *x: attention(*x, **ours), inputs, dout)
    pytorch = run(lambda *x: sdpa(*x, **theirs), inputs, dout)
    written_out = run(lambda *x: formula(*x, **theirs), inputs, dout)
    if case == "bias":
        theirs = dict(attn_mask=bias.double())
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    exact = run(lambda *x: sdpa(*x, **theirs), wide, dout.double())
    for name, mine, *others, expected in zip(("out", "dq", "dk", "dv"), actual, pytorch, written_out, exact):
        error, *errors = ((value.double() - expected).abs().max().item() for value in (mine, *others))
        bound = max(errors)
        slack = 1e-5 if name == "out" else 1e-4
        assert error <= 2 * bound + slack, f"{name}: error {error:.3g}, PyTorch's is {bound:.3g}"
        cosine = torch.nn.functional.cosine_similarity(mine.double().flatten(), expected.flatten(), dim=0).item()
        assert 1 - cosine <= 1e-4, f"{name}: 1 - cosine is {1 - cosine:.3g}"


def formula(q, k, v, scale=None, is_causal=False, attn_mask=None, enable_gqa=False):
    """Attention in the type of its inputs, every step of it."""
    if enable_gqa:
        k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], 1) for tensor in (k, v))
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1) @ v


def run(function, inputs, dout):
    out = function(*inputs)
    return (out.detach(), *torch.autograd.grad(out, inputs, dout))
