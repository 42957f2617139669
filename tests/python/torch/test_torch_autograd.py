"""Gradients: against numerical ones, in parts, through views and broadcasts, and refusals."""

import itertools

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch_reference  # noqa: E402
from cuflash._torch import attention, call  # noqa: E402
from cuflash.flash_attn_interface import (flash_attn_func, flash_attn_kvpacked_func,  # noqa: E402
                                          flash_attn_qkvpacked_func, flash_attn_varlen_func)


def random(*shape, device, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=dtype).to(device).requires_grad_()


def problem(device, dtype=torch.float64, len_q=5, len_k=7):
    """q [2, 5, 4, 6], k [2, 7, 2, 6], v [2, 7, 2, 3]"""
    return (random(2, len_q, 4, 6, device=device, dtype=dtype), random(2, len_k, 2, 6, device=device, dtype=dtype),
            random(2, len_k, 2, 3, device=device, dtype=dtype))


OPTIONS = {
    "plain": {},
    "causal": dict(causal=True),
    "window": dict(window=(2, 1)),
    "softcap": dict(softcap=1.5),
    "alibi": dict(alibi_slopes=torch.tensor([0.1, 0.2, 0.3, 0.4])),
    "dropout": dict(dropout_p=0.3, dropout_seed=11),
    "mask": dict(mask=torch.tensor([1, 1, 0, 1, 0, 1, 1], dtype=torch.bool)),
    "lengths": dict(seqlens_q=torch.tensor([5, 3]).int(), seqlens_k=torch.tensor([4, 7]).int()),
    "all": dict(causal=True, window=(4, -1), softcap=2.0, dropout_p=0.2, dropout_seed=3, scale=0.7,
                alibi_slopes=torch.tensor([0.1, 0.2, 0.3, 0.4])),
}


def on(device, options):
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in options.items()}


@pytest.mark.parametrize("options", OPTIONS)
def test_gradcheck(options, device):
    """q, k, v, bias and sink, through out and lse."""
    options = on(device, OPTIONS[options])
    bias, sink = random(1, 4, 5, 7, device=device), random(4, device=device)

    def function(q, k, v, bias, sink):
        return attention(q, k, v, bias=bias, sink=sink, layout="bshd", return_lse=True, **options)

    def finite(*inputs):  # rows beyond a length have an LSE of -inf, which has no numerical derivative
        out, lse = function(*inputs)
        return out, lse.masked_fill(lse == -torch.inf, 0.0)

    assert torch.autograd.gradcheck(finite, (*problem(device), bias, sink))


def test_gradient_of_a_bias_without_elements(device):
    """Its strides say nothing, and must not be taken for a broadcast."""
    q, k, v = (torch.zeros(0, heads, 0, 1, device=device, requires_grad=True) for heads in (2, 1, 1))
    bias = torch.zeros(1, 2, 1, 0, device=device, requires_grad=True)
    out = attention(q, k, v, bias=bias)
    assert torch.autograd.grad(out, bias, torch.zeros_like(out))[0].shape == bias.shape


@pytest.mark.parametrize("shape", ((2, 4, 1, 7), (1, 1, 5, 7), (1, 4, 1, 7), (1, 1, 1, 7), (5, 7), (7,)), ids=str)
def test_gradcheck_of_broadcast_bias(shape, device):
    inputs = problem(device)
    assert torch.autograd.gradcheck(lambda bias: attention(*inputs, bias=bias, layout="bshd", causal=True),
                                    random(*shape, device=device))


def test_lengths_may_be_lists(device):
    q, k, v = (tensor.transpose(1, 2) for tensor in problem(device))
    lengths = on(device, OPTIONS["lengths"])
    expected = attention(q, k, v, **lengths)
    assert torch.equal(attention(q, k, v, seqlens_q=[5, 3], seqlens_k=(4, 7)), expected)
    with pytest.raises((ValueError, TypeError), match="seqlens_k"):
        attention(q, k, v, seqlens_k=[4.5, 7])


def test_gradcheck_of_packed_inputs(device):
    cu_seqlens = torch.tensor([0, 3, 3, 8], dtype=torch.int32, device=device)
    assert torch.autograd.gradcheck(lambda qkv: flash_attn_qkvpacked_func(qkv, causal=True),
                                    random(2, 5, 3, 2, 4, device=device))
    assert torch.autograd.gradcheck(lambda q, kv: flash_attn_kvpacked_func(q, kv, causal=True),
                                    (random(2, 5, 4, 4, device=device), random(2, 6, 2, 2, 4, device=device)))
    assert torch.autograd.gradcheck(
        lambda q, k, v: flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, 5, 5, causal=True),
        tuple(random(8, 2, 4, device=device, seed=seed) for seed in range(3)))


def spy_on_gradients(monkeypatch):
    """A list that gets what each call of the library computes: the gradients of q, k, v, bias and sink."""
    computed = []
    of_call, of_node = call._backward, call.backward_of_node

    def spy(*arguments):
        computed.append(of_call(*arguments))
        return computed[-1]

    def spy_on_node(*arguments):
        found = of_node(*arguments)
        if found is not None:
            computed.append((*found[:3], *(found[4:] or (None, None))))
        return found

    monkeypatch.setattr(call, "_backward", spy)
    monkeypatch.setattr(call, "backward_of_node", spy_on_node)
    return computed


@pytest.mark.parametrize("wanted", list(itertools.product((False, True), repeat=5))[1:], ids=str)
def test_only_what_is_asked_for(wanted, device, monkeypatch):
    inputs = (*problem(device), random(1, 4, 5, 7, device=device), random(4, device=device))
    everything = torch.autograd.grad(_sum(*inputs), inputs)
    computed = spy_on_gradients(monkeypatch)
    some = [tensor.detach().requires_grad_(want) for tensor, want in zip(inputs, wanted)]
    gradients = torch.autograd.grad(_sum(*some), [tensor for tensor in some if tensor.requires_grad])
    assert [tuple(gradient is not None for gradient in call) for call in computed] == [wanted]
    for gradient, expected in zip(gradients, itertools.compress(everything, wanted)):
        torch.testing.assert_close(gradient, expected)


def _sum(q, k, v, bias, sink):
    out, lse = attention(q, k, v, bias=bias, sink=sink, layout="bshd", return_lse=True)
    return (out * out.detach().cos()).sum() + (lse * lse.detach().sin()).sum()


def test_no_graph_without_a_gradient(device):
    q, k, v = problem(device)
    with torch.no_grad():
        assert not flash_attn_func(q, k, v).requires_grad
    assert flash_attn_func(q.detach(), k.detach(), v.detach()).grad_fn is None
    assert flash_attn_func(q.detach(), k, v.detach()).requires_grad


def test_only_lse_is_used(device):
    q, k, v = problem(device)
    _, lse = attention(q, k, v, layout="bshd", return_lse=True)
    expected = torch_reference.attention(q, k, v, dtype=torch.float64)[1]
    cotangent = torch.randn_like(lse)
    for actual, gradient in zip(torch.autograd.grad(lse, (q, k, v), cotangent),
                                torch.autograd.grad(expected, (q, k, v), cotangent, materialize_grads=True,
                                                    allow_unused=True)):
        torch.testing.assert_close(actual, gradient, atol=1e-12, rtol=0)


def test_second_derivative_is_refused(device):
    q, k, v = problem(device)
    (dq,) = torch.autograd.grad(flash_attn_func(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dq.sum().backward()


def test_slopes_have_no_gradient(device):
    q, k, v = problem(device)
    slopes = torch.rand(4, device=device).requires_grad_()
    with pytest.raises(ValueError, match="alibi_slopes.detach"):
        flash_attn_func(q, k, v, alibi_slopes=slopes)
    with torch.no_grad():
        flash_attn_func(q, k, v, alibi_slopes=slopes)


def test_forward_mode_is_refused(device):
    q, k, v = (tensor.detach() for tensor in problem(device))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(k, torch.ones_like(k))
        with pytest.raises(NotImplementedError, match="k has a forward-mode tangent"):
            flash_attn_func(q, dual, v)


def test_inputs_changed_before_backward_are_noticed(device):
    q, k, v = (tensor * 1 for tensor in problem(device))
    out = flash_attn_func(q, k, v)
    k.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("layout", ("bshd", "thd"))
def test_saved_tensors_that_a_hook_returns_negated(layout, device):
    """A hook may return a view that stores the negative of each number; q, k, v, out, lse and a bias are all saved."""
    inputs = problem(device)
    options = {"layout": layout, "causal": True, "return_lse": True}
    if layout == "bshd":
        inputs = (*inputs, random(1, 4, 5, 7, device=device))
    else:
        cu_seqlens = [torch.tensor([0, 2, length], dtype=torch.int32, device=device) for length in (5, 7)]
        inputs = tuple(tensor[0].detach().requires_grad_() for tensor in inputs)
        options.update(cu_seqlens_q=cu_seqlens[0], cu_seqlens_k=cu_seqlens[1], max_seqlen_q=5, max_seqlen_k=7)

    def attend():
        return attention(*inputs[:3], bias=inputs[3] if layout == "bshd" else None, **options)

    def differentiate(out, lse):
        return torch.autograd.grad(out.sin().sum() + lse.cos().sum(), inputs)

    def negate(change):
        return lambda tensor: change(tensor) if tensor.is_floating_point() else tensor

    expected = differentiate(*attend())
    with torch.autograd.graph.saved_tensors_hooks(negate(torch.neg), negate(torch._neg_view)):
        out, lse = attend()
    assert all(tensor.is_neg() for tensor in out.grad_fn.saved_tensors[:5])
    torch.testing.assert_close(differentiate(out, lse), expected, atol=1e-13, rtol=1e-13)


VIEWS = {
    "transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "rows with gaps": lambda x: torch.cat([x, x], -1)[..., :x.shape[-1]],
    "last dimension strided": lambda x: torch.stack([x, x], -1)[..., 0],
    "last dimension first": lambda x: x.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0),
    "batch repeated": lambda x: x[:1].expand(x.shape),
    "head repeated": lambda x: x[:, :, :1].expand(x.shape),
    "row repeated": lambda x: x[:, :1].expand(x.shape),
    "all one number": lambda x: x[:1, :1, :1, :1].expand(x.shape),
    "overlapping": lambda x: x.reshape(-1).as_strided(x.shape, (3, 2, 5, 1)),
    "shifted by one": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape),
    "negated when read": lambda x: torch._neg_view(-x),  # like the imaginary part of a conjugate
}


@pytest.mark.parametrize("view", VIEWS)
def test_memory_of_inputs(view, device):
    """Gradients flow through the view to its base."""
    leaves = problem(device)

    def run(attend):
        out, lse = attend(*map(VIEWS[view], leaves))
        loss = (out * torch.arange(out.numel(), device=device).view(out.shape).cos()).sum() + lse.sin().sum()
        return out, torch.autograd.grad(loss, leaves)

    actual = run(lambda *inputs: attention(*inputs, layout="bshd", causal=True, return_lse=True))
    expected = run(lambda *inputs: torch_reference.attention(*inputs, dtype=torch.float64, causal=True))
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)


PACKED_VIEWS = {
    **{name: VIEWS[name] for name in ("transposed", "rows with gaps", "last dimension strided", "negated when read")},
    "one part behind the other": lambda x: x.movedim(-3, 0).contiguous().movedim(0, -3),
    "one part for all": lambda x: x[..., :1, :, :].expand(x.shape),
}


@pytest.mark.parametrize("recorded", (False, True))
@pytest.mark.parametrize("view", PACKED_VIEWS)
def test_memory_of_packed_inputs(view, recorded, device):
    """Packed tensors give the same as separate ones."""
    q, kv, qkv = (random(*shape, device=device) for shape in ((2, 5, 4, 6), (2, 5, 2, 2, 6), (2, 5, 3, 4, 6)))
    change = PACKED_VIEWS[view]
    for leaves, packed, parts in (
            ((qkv,), lambda x: flash_attn_qkvpacked_func(change(x)), lambda x: flash_attn_func(*change(x).unbind(2))),
            ((q, kv), lambda q, x: flash_attn_kvpacked_func(q, change(x)),
             lambda q, x: flash_attn_func(q, *change(x).unbind(2)))):
        with torch.set_grad_enabled(recorded):
            actual, expected = packed(*leaves), parts(*leaves)
        torch.testing.assert_close(actual, expected, atol=1e-14, rtol=0)
        assert actual.is_contiguous()
        if recorded:
            gradients = [torch.autograd.grad(out.sin().sum(), leaves) for out in (actual, expected)]
            torch.testing.assert_close(*gradients, atol=1e-13, rtol=0)


@pytest.mark.parametrize("shape, words", [((2, 5, 2, 4, 6), r"\[2, 5, 2, 4, 6\]"), ((4, 6), r"\[4, 6\]")])
def test_packed_inputs_of_the_wrong_shape(shape, words, device):
    with pytest.raises(ValueError, match=f"^qkv has shape {words}; its third dimension from the end must be 3"):
        flash_attn_qkvpacked_func(random(*shape, device=device))
    with pytest.raises(ValueError, match="^kv has shape .*; its third dimension from the end must be 2"):
        flash_attn_kvpacked_func(random(2, 5, 4, 6, device=device), random(2, 5, 3, 4, 6, device=device))


def test_results_are_ordinary_tensors(device):
    """They are not allocated through the dispatcher, which would ensure this."""
    q, k, v = problem(device)
    with torch.inference_mode():
        assert flash_attn_func(q, k, v).is_inference()
    out, lse = attention(q, k, v, layout="bshd", return_lse=True)
    assert type(out) is type(lse) is torch.Tensor and out.device == lse.device == q.device
    assert out.requires_grad and not attention(q.detach(), k.detach(), v.detach(), layout="bshd").requires_grad
    assert out.stride() == (60, 12, 3, 1) and lse.stride() == (20, 5, 1)


@pytest.mark.parametrize("view", VIEWS)
def test_memory_of_bias_and_mask(view, device):
    inputs = problem(device)
    bias = random(2, 4, 5, 7, device=device)
    mask = (random(2, 4, 5, 7, device=device, seed=5) > -0.5).detach()

    def run(attend):
        seen = mask if view == "negated when read" else VIEWS[view](mask)
        out = attend(*inputs, bias=VIEWS[view](bias), mask=seen)
        return out, torch.autograd.grad((out * torch.arange(3, device=device)).sum(), (bias, inputs[0]))

    actual = run(lambda *inputs, **options: attention(*inputs, layout="bshd", **options))
    expected = run(lambda *inputs, **options: torch_reference.attention(*inputs, dtype=torch.float64, **options)[0])
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)


def test_gradient_that_is_expanded(device):
    """The gradient of out.sum() is one number, expanded: stride 0 everywhere."""
    q, k, v = problem(device)
    actual = torch.autograd.grad(flash_attn_func(q, k, v).sum(), (q, k, v))
    expected = torch.autograd.grad(torch_reference.attention(q, k, v, dtype=torch.float64)[0].sum(), (q, k, v))
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=0)


def test_packed_gradient_is_one_tensor(device, monkeypatch):
    """The kernel writes straight into its parts, without a copy."""
    computed = spy_on_gradients(monkeypatch)
    qkv = random(2, 5, 3, 2, 4, device=device)
    (gradient,) = torch.autograd.grad(flash_attn_qkvpacked_func(qkv).sum(), qkv)
    ((dqkv, *others),) = computed
    assert dqkv.data_ptr() == gradient.data_ptr() and others == [None] * 4
    assert gradient.is_contiguous()


@pytest.mark.parametrize("layout", ("bhsd", "bshd"))
def test_memory_of_results(layout, device):
    """[B, H, S, D] views of [B, S, H, D] memory get such a result: a model can flatten its heads without a copy."""
    q, k, v = problem(device)
    if layout == "bshd":
        for view in ("transposed", "rows with gaps", "batch repeated", "last dimension first"):
            assert attention(VIEWS[view](q), k, k, layout="bshd").is_contiguous()  # k for v: with the size of q
            assert attention(VIEWS[view](q), k, v, layout="bshd").is_contiguous()
        return
    views = [tensor.transpose(1, 2) for tensor in (q, k, v)]
    assert attention(*views).transpose(1, 2).is_contiguous()
    assert attention(*(view.contiguous() for view in views)).is_contiguous()


def test_rows_of_no_sequence_are_zero_on_the_cpu():
    """cu_seqlens that end before the rows do."""
    cu_seqlens = torch.tensor([0, 2, 5], dtype=torch.int32)
    q, k, v = (random(9, 2, 4, device="cpu", seed=seed) for seed in range(3))
    out, lse, _ = flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, 3, 3, return_attn_probs=True)
    assert out[5:].eq(0).all() and out[:5].ne(0).all() and lse[:, 5:].eq(0).all()
    for gradient in torch.autograd.grad(out.square().sum(), (q, k, v)):
        assert gradient[5:].eq(0).all() and gradient[:5].ne(0).all()


@pytest.mark.parametrize("lse", (False, True))
def test_tensors_are_taken_once(lse, device):
    """Activation checkpointing computes the saved tensors again in the backward pass, and refuses to do so twice."""
    from torch.utils.checkpoint import checkpoint

    q, k, v = problem(device)
    packed = [tensor.flatten(0, 1) for tensor in (q, k, v)]
    cu_q, cu_k = (torch.arange(batch + 1, dtype=torch.int32, device=device) * length
                  for batch, length, *_ in (q.shape, k.shape))
    lengths = dict(cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_seqlen_q=q.shape[1], max_seqlen_k=k.shape[1])
    bias = random(1, q.shape[2], q.shape[1], k.shape[1], device=device)
    calls = (lambda: attention(q, k, v, layout="bshd", return_lse=lse),
             lambda: attention(q, k, v, layout="bshd", bias=bias, return_lse=lse),
             lambda: attention(*packed, layout="thd", return_lse=lse, **lengths))
    for function in calls:
        def loss(results):
            return results[1].sum() if lse else results.square().sum()

        expected = torch.autograd.grad(loss(function()), (q, k), retain_graph=True)
        actual = torch.autograd.grad(loss(checkpoint(function, use_reentrant=False)), (q, k), retain_graph=True)
        torch.testing.assert_close(actual, expected)
