"""Calls from several Python threads at once."""

import concurrent.futures

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from cuflash.flash_attn_interface import flash_attn_func  # noqa: E402


def step(seed, device):
    """Forward and backward of the thread's own problem; results depend on the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    length = 20 + seed % 40
    q, k, v = (torch.randn(2, length, 2, 32, generator=generator).to(device).requires_grad_() for _ in range(3))
    out = flash_attn_func(q, k, v, 0.1, causal=True, deterministic=True, dropout_seed=seed)
    return [tensor.cpu() for tensor in (out.detach(), *torch.autograd.grad(out.square().sum(), (q, k, v)))]


def test_threads_get_the_results_of_one(device):
    seeds = range(64)
    expected = [step(seed, device) for seed in seeds]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for actual, alone in zip(pool.map(lambda seed: step(seed, device), seeds), expected):
            assert all(map(torch.equal, actual, alone))


def test_each_thread_draws_dropout_of_its_own(device):
    """No two calls share a mask, even across threads."""
    q, k, v = (torch.randn(1, 32, 1, 8, device=device) for _ in range(3))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: flash_attn_func(q, k, v, 0.5).cpu(), range(200)))
    assert len({tuple(result.flatten().tolist()) for result in results}) == len(results)


def test_number_of_threads_is_pytorchs(monkeypatch):
    from cuflash import _flash_attn
    from cuflash._torch import call

    given = []
    monkeypatch.setattr(call, "_library_counts_threads", False)

    def count():
        given.append(call._num_threads())
        return given[-1]

    monkeypatch.setattr(_flash_attn, "plain_call", call._calls(count).plain_call)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            flash_attn_func(*(torch.randn(1, 4, 1, 8) for _ in range(3)))
    finally:
        torch.set_num_threads(before)
    assert given == [1, 2]
