"""Streams, graphs, devices and memory: what only a GPU can test."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from cuflash.flash_attn_interface import flash_attn_func, flash_attn_varlen_func  # noqa: E402


def problem(device="cuda", length=256, requires_grad=False):
    torch.manual_seed(0)
    return [torch.randn(2, length, 4, 64, device=device, dtype=torch.bfloat16, requires_grad=requires_grad)
            for _ in range(3)]


def test_current_stream(cuda):
    """A side stream writes the values late and soon overwrites them: a call on another stream would miss them."""
    q, k, v = problem()
    expected = flash_attn_func(q, k, v)
    late = torch.zeros_like(v)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late.copy_(v)
        out = flash_attn_func(q, k, late)
        late.zero_()
    stream.synchronize()
    assert torch.equal(out, expected)


def test_backward_runs_on_the_stream_of_forward(cuda):
    inputs = problem(requires_grad=True)
    dout = torch.randn_like(inputs[0])
    expected = torch.autograd.grad(flash_attn_func(*inputs, deterministic=True), inputs, dout)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        out = flash_attn_func(*inputs, deterministic=True)
        actual = torch.autograd.grad(out, inputs, dout)
    torch.cuda.synchronize()
    assert all(map(torch.equal, actual, expected))


def test_graph_capture(cuda):
    """Forward and backward are captured once and replayed on other numbers."""
    inputs = problem(requires_grad=True)
    dout = torch.randn_like(inputs[0])

    def step():
        out = flash_attn_func(*inputs, causal=True, deterministic=True)
        return (out, *torch.autograd.grad(out, inputs, dout))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()  # builds the kernels before the capture
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for seed in range(3):
        torch.manual_seed(seed)
        with torch.no_grad():
            for tensor in (*inputs, dout):
                tensor.copy_(torch.randn_like(tensor))
        graph.replay()
        assert all(map(torch.equal, captured, step()))


def test_dropout_in_a_graph_needs_a_seed(cuda):
    inputs = problem()
    expected = flash_attn_func(*inputs, 0.5, dropout_seed=3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = flash_attn_func(*inputs, 0.5, dropout_seed=3)
        with pytest.raises(RuntimeError, match="Pass dropout_seed"):
            flash_attn_func(*inputs, 0.5)
    graph.replay()
    assert torch.equal(out, expected)


def test_dropout_is_drawn_from_the_generator_of_the_gpu(cuda):
    inputs = problem()
    torch.cuda.manual_seed(7)
    first, second = flash_attn_func(*inputs, 0.5), flash_attn_func(*inputs, 0.5)
    torch.cuda.manual_seed(7)
    assert torch.equal(flash_attn_func(*inputs, 0.5), first) and not torch.equal(first, second)
    state = torch.cuda.get_rng_state()
    third = flash_attn_func(*inputs, 0.5)
    torch.cuda.set_rng_state(state)
    assert torch.equal(flash_attn_func(*inputs, 0.5), third)


def test_nothing_waits_for_the_gpu(cuda):
    q, k, v = problem(requires_grad=True)
    cu_seqlens = torch.tensor([0, 100, 512], dtype=torch.int32, device="cuda")
    packed = [tensor.detach().flatten(0, 1).requires_grad_() for tensor in (q, k, v)]
    dout = torch.randn_like(packed[0])

    def step():
        flash_attn_func(q, k, v, 0.1).backward(dout.view_as(q))
        out = flash_attn_varlen_func(*packed, cu_seqlens, cu_seqlens, 412, 412, 0.1, causal=True)
        torch.autograd.grad(out, packed, dout)

    step(), step()  # the second adds to gradients with a PyTorch kernel whose loading synchronizes
    torch.cuda.synchronize()
    event = torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
        event.record()
        assert not event.query(), "the call came back only when the GPU was done"
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()


def test_workspace_is_given_back(cuda):
    inputs = problem(requires_grad=True)
    dout = torch.randn_like(inputs[0])

    def step():
        torch.autograd.grad(flash_attn_func(*inputs), inputs, dout)

    step()
    before = torch.cuda.memory_allocated()
    for _ in range(5):
        step()
    assert torch.cuda.memory_allocated() == before


def test_mixed_devices_are_refused(cuda):
    q, k, v = problem()
    with pytest.raises(ValueError, match=r"\bk\b"):
        flash_attn_func(q, k.cpu(), v)
    with pytest.raises(ValueError, match=r"alibi_slopes"):
        flash_attn_func(q, k, v, alibi_slopes=torch.rand(4))


def test_device_that_is_not_the_current_one(cuda):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    inputs = problem("cuda:1", requires_grad=True)
    out = flash_attn_func(*inputs)
    out.sum().backward()
    expected = flash_attn_func(*(tensor.detach().to("cuda:0") for tensor in inputs))
    assert torch.cuda.current_device() == 0
    torch.testing.assert_close(out.to("cuda:0"), expected)


def test_gradients_repeat_when_asked_to(cuda):
    inputs = problem(length=1000, requires_grad=True)
    dout = torch.randn_like(inputs[0])

    def gradients():
        return torch.autograd.grad(flash_attn_func(*inputs, causal=True, deterministic=True), inputs, dout)

    first = gradients()
    assert all(all(map(torch.equal, gradients(), first)) for _ in range(5))
