"""Summaries of masks with PyTorch: autograd, compiled calls, other layouts, and the functions of flash_attn."""

import pytest

torch = pytest.importorskip("torch")

import cuflash

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def problem(device, length=150):
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, length, 64), (2, 2, length, 64), (2, 2, length, 64))
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    tensors = [torch.randn(shape, generator=generator).to(device, dtype).requires_grad_() for shape in shapes]
    mask = torch.rand(2, 1, length, length, generator=generator).to(device) < 0.6
    return (*tensors, mask)


def gradients(out, *tensors):
    return torch.autograd.grad(out.float().square().sum(), tensors)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_equal_those_of_the_mask(device):
    q, k, v, mask = problem(device)
    summary = cuflash.summarize_mask(mask)
    assert summary.shape == (2, 1, 150, 150) and summary.words.device == mask.device
    results = []
    for given in (mask, summary):
        out = cuflash.attention(q, k, v, mask=given, causal=True, deterministic=True)
        results.append((out, *gradients(out, q, k, v)))
    for from_mask, from_summary in zip(*results):
        assert torch.equal(from_mask, from_summary)


@pytest.mark.parametrize("device", DEVICES)
def test_other_layouts(device):
    q, k, v, mask = problem(device)
    summary = cuflash.summarize_mask(mask)
    expected = cuflash.attention(q, k, v, mask=mask)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    assert torch.equal(cuflash.flash_attn_func(q, k, v, mask=summary).transpose(1, 2), expected)


def test_compiled_calls():
    q, k, v, mask = problem("cpu")
    summary = cuflash.summarize_mask(mask)
    compiled = torch.compile(lambda q, k, v: cuflash.attention(q, k, v, mask=summary), backend="aot_eager", fullgraph=True)
    out, expected = compiled(q, k, v), cuflash.attention(q, k, v, mask=mask)
    assert torch.equal(out, expected)
    for made, wanted in zip(gradients(out, q, k, v), gradients(expected, q, k, v)):
        assert torch.equal(made, wanted)


def test_an_expanded_mask_stays_small():
    mask = torch.ones(50, dtype=torch.bool).expand(2, 4, 50, 50)
    assert cuflash.summarize_mask(mask).shape == (1, 1, 1, 50)


def test_the_summary_of_another_mask_is_rejected():
    q, k, v, _ = problem("cpu")
    for shape, message in (((150, 149), "150 keys"), ((3, 1, 150, 150), "mask_summary"), ((151, 150), "mask_summary")):
        with pytest.raises(ValueError, match=message):
            cuflash.attention(q, k, v, mask=cuflash.summarize_mask(torch.ones(shape, dtype=torch.bool)))
