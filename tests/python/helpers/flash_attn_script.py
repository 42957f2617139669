"""A script as it is written against flash_attn 2.x: every function, options by position and by name, backward.

It knows nothing of cuflash; run it with `flash_attn` standing for either (see test_flash_attn_interface.py).
"""

import math
import os

import torch
from flash_attn import (flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func, flash_attn_varlen_func,
                        flash_attn_varlen_kvpacked_func, flash_attn_varlen_qkvpacked_func)

DEVICE = os.environ.get("CUFLASH_TEST_DEVICE", "cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16
BATCH, LENGTH, HEADS, SIZE = 2, 100, 4, 64


def check(name, actual, expected, tolerance=3e-2):
    error = (actual.float() - expected.float()).abs().max().item()
    assert actual.shape == expected.shape and error < tolerance, f"{name}: off by {error}"
    print(f"{name}: ok, off by {error:.1e}")


def plain_attention(q, k, v, causal=False, window=(-1, -1), softcap=0.0, slopes=None, scale=None):
    """[B, S, H, D] in f32, with the whole score matrix."""
    q, k, v = (x.float().transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * (scale or 1 / math.sqrt(q.shape[-1]))
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    distance = torch.arange(k.shape[2], device=q.device) - torch.arange(q.shape[2], device=q.device)[:, None]
    distance = distance - (k.shape[2] - q.shape[2])
    if slopes is not None:
        scores = scores - slopes[:, None, None] * distance.abs()
    left, right = window[0], 0 if causal else window[1]
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if right >= 0:
        hidden |= distance > right
    if left >= 0:
        hidden |= distance < -left
    scores = scores.masked_fill(hidden, -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2), scores.logsumexp(-1)


def random(*shape):
    return torch.randn(*shape, device=DEVICE, dtype=DTYPE, requires_grad=True)


def dense():
    q, k, v = random(BATCH, LENGTH, HEADS, SIZE), random(BATCH, LENGTH, 2, SIZE), random(BATCH, LENGTH, 2, SIZE)
    check("plain", flash_attn_func(q, k, v), plain_attention(q, k, v)[0])
    check("causal", flash_attn_func(q, k, v, causal=True), plain_attention(q, k, v, causal=True)[0])
    check("by position", flash_attn_func(q, k, v, 0.0, 0.1, True), plain_attention(q, k, v, True, scale=0.1)[0])
    check("window", flash_attn_func(q, k, v, window_size=(16, 8)), plain_attention(q, k, v, window=(16, 8))[0])
    check("softcap", flash_attn_func(q, k, v, softcap=5.0), plain_attention(q, k, v, softcap=5.0)[0])
    slopes = torch.tensor([2.0 ** -(i + 1) for i in range(HEADS)], device=DEVICE)
    check("alibi", flash_attn_func(q, k, v, causal=True, alibi_slopes=slopes),
          plain_attention(q, k, v, causal=True, slopes=slopes)[0])
    short = q[:, -10:]
    out, lse, _ = flash_attn_func(short, k, v, causal=True, return_attn_probs=True)
    expected, expected_lse = plain_attention(short, k, v, causal=True)
    check("last queries", out, expected)
    check("softmax_lse", lse, expected_lse)

    out = flash_attn_func(q, k, v, causal=True, deterministic=True)
    gradient = torch.randn_like(out)
    actual = torch.autograd.grad(out, (q, k, v), gradient)
    expected = torch.autograd.grad(plain_attention(q, k, v, causal=True)[0], (q, k, v), gradient.float())
    for name, a, b in zip(("dq", "dk", "dv"), actual, expected):
        check(name, a, b, 6e-2)


def packed():
    qkv = random(BATCH, LENGTH, 3, HEADS, SIZE)
    expected, _ = plain_attention(*qkv.unbind(2), causal=True)
    check("qkv packed", flash_attn_qkvpacked_func(qkv, causal=True), expected)
    check("kv packed", flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:], causal=True), expected)
    flash_attn_qkvpacked_func(qkv, causal=True).sum().backward()
    actual, qkv.grad = qkv.grad, None
    plain_attention(*qkv.unbind(2), causal=True)[0].sum().backward()
    check("dqkv", actual, qkv.grad, 6e-2)


def varlen():
    lengths = [5, 70, 25]
    cu_seqlens = torch.tensor([0, 5, 75, 100], dtype=torch.int32, device=DEVICE)
    qkv = random(sum(lengths), 3, HEADS, SIZE)
    q, k, v = qkv.unbind(1)
    expected = torch.cat([plain_attention(*(x[None] for x in part.unbind(1)), causal=True)[0][0]
                          for part in qkv.split(lengths)])
    check("varlen", flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, 70, 70, 0.0, causal=True), expected)
    check("varlen qkv", flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, 70, causal=True), expected)
    out = flash_attn_varlen_kvpacked_func(q, qkv[:, 1:], cu_seqlens, cu_seqlens, 70, 70, causal=True)
    check("varlen kv", out, expected)
    gradient = torch.randn_like(expected)
    (actual,) = torch.autograd.grad(flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, 70, causal=True), qkv,
                                    gradient.to(DTYPE))
    check("varlen dqkv", actual, torch.autograd.grad(expected, qkv, gradient)[0], 6e-2)


def dropout():
    q, k, v = random(BATCH, LENGTH, HEADS, SIZE), random(BATCH, LENGTH, HEADS, SIZE), random(BATCH, LENGTH, HEADS, SIZE)
    torch.manual_seed(1)
    first, second = flash_attn_func(q, k, v, dropout_p=0.17), flash_attn_func(q, k, v, 0.17)
    torch.manual_seed(1)
    assert torch.equal(first, flash_attn_func(q, k, v, 0.17)) and not torch.equal(first, second)
    out, _, s_dmask = flash_attn_func(q, k, v, 0.17, return_attn_probs=True)
    kept = s_dmask[:, :, :LENGTH, :LENGTH].float().clamp(min=0)
    check("dropout", out, (kept / (1 - 0.17) @ v.float().transpose(1, 2)).transpose(1, 2))
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


if __name__ == "__main__":
    torch.manual_seed(0)
    for part in (dense, packed, varlen, dropout):
        part()
