"""cuflash.attention with arrays of PyTorch, JAX and CuPy: results in the same library, equal to the reference."""

import numpy as np
import pytest

import cuflash
from cuflash import _core, _reference


def inputs():
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, 3, 9, 16)).astype(np.float32) for _ in range(3)]


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_torch(device, rank):
    torch = pytest.importorskip("torch")
    arrays = inputs()
    narrow = [torch.from_numpy(x[(0,) * (4 - rank)].copy()).to(device).requires_grad_() for x in arrays]
    out, lse = cuflash.attention(*narrow, causal=True, return_lse=True)
    assert isinstance(out, torch.Tensor) and out.device == narrow[0].device
    expected, expected_lse = (x[(0,) * (4 - rank)] for x in _reference.attention(*arrays, causal=True))
    np.testing.assert_allclose(out.detach().cpu().numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(lse.detach().cpu().numpy(), expected_lse, atol=1e-5)
    out.sum().backward()
    gradients = _reference.attention_backward(np.ones_like(arrays[0]), *arrays, causal=True)
    np.testing.assert_allclose(narrow[0].grad.cpu().numpy(), gradients.dq[(0,) * (4 - rank)], atol=1e-4)


def test_torch_tensors_are_written_in_place(device):
    torch = pytest.importorskip("torch")
    from core_call import options

    arrays = inputs()
    q, k, v = (torch.from_numpy(x).to(device).swapaxes(1, 2) for x in arrays)
    mask = torch.rand(1, 1, 9, 9, generator=torch.Generator().manual_seed(0)) < 0.5
    lengths = torch.tensor([4, 9], dtype=torch.int32)
    out = torch.empty(2, 9, 3, 16, device=device)
    asked = []

    def allocate(size):
        asked.append(torch.empty(size, dtype=torch.uint8, device=device))
        return asked[-1]

    _core.forward(q, k, v, out, None, **options("bshd", mask=mask.to(device), seqlens_k=lengths.to(device),
                                               allocate=allocate))
    expected, _ = _reference.attention(*arrays, mask=mask.numpy(), seqlens_k=lengths.numpy())
    np.testing.assert_allclose(out.cpu().numpy().swapaxes(1, 2), expected, atol=1e-5)
    assert device == "cuda" or not asked  # on the CPU the library allocates its own scratch memory


def test_torch_tensors_of_two_devices_are_refused(cuda):
    import torch
    from core_call import options

    q = torch.ones(1, 1, 4, 8, device="cuda")
    with pytest.raises(ValueError, match="k: is on the CPU, but q is on CUDA device 0"):
        _core.forward(q, q.cpu(), q, torch.empty_like(q), None, **options())


def test_a_workspace_that_does_not_fit_is_refused(cuda):
    import torch
    from core_call import options

    q = torch.ones(1, 2, 64, 32, device="cuda")
    out, lse = torch.empty_like(q), torch.empty(1, 2, 64, device="cuda")
    _core.forward(q, q, q, out, lse, **options())
    gradients = [torch.empty_like(q) for _ in range(3)]
    for allocate in (lambda n: torch.empty(n, dtype=torch.uint8), lambda n: q.new_empty(n // 8)):
        with pytest.raises(ValueError, match="allocate: returned"):
            _core.backward(q, q, q, out, lse, q, None, *gradients, None, None, **options(allocate=allocate))


def test_jax():
    jax = pytest.importorskip("jax")
    arrays = [jax.numpy.asarray(x) for x in inputs()]
    out = cuflash.attention(*arrays, causal=True)
    assert isinstance(out, jax.Array)
    np.testing.assert_allclose(np.asarray(out), _reference.attention(*inputs(), causal=True)[0], atol=1e-5)


def test_jax_arrays_are_read_by_dlpack():
    jax = pytest.importorskip("jax")
    from core_call import options

    cpu = jax.devices("cpu")[0]
    for kind, allowed in ((np.float32, 1e-5), (jax.numpy.bfloat16, 3e-2)):
        arrays = [jax.device_put(x.astype(kind), cpu) for x in inputs()]
        out = np.empty(arrays[0].shape, np.float32)
        _core.forward(*arrays, out, None, **options())
        expected, _ = _reference.attention(*(np.asarray(x, np.float64) for x in arrays))
        np.testing.assert_allclose(out, expected, atol=allowed)


def test_cupy(cuda):
    cupy = pytest.importorskip("cupy")
    arrays = inputs()
    q, k, v = (cupy.asarray(x) for x in arrays)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        out, lse = cuflash.attention(q, k, v, causal=True, return_lse=True)
        gradients = cuflash.attention_backward(cupy.ones_like(out), q, k, v, out, lse, causal=True)
        strided = cuflash.attention(q[:, :, ::-1], k.swapaxes(2, 3).copy().swapaxes(2, 3), v)
    stream.synchronize()
    assert isinstance(out, cupy.ndarray)
    expected, expected_lse = _reference.attention(*arrays, causal=True)
    np.testing.assert_allclose(cupy.asnumpy(out), expected, atol=1e-5)
    np.testing.assert_allclose(cupy.asnumpy(lse), expected_lse, atol=1e-5)
    reference = _reference.attention_backward(np.ones_like(arrays[0]), *arrays, causal=True)
    np.testing.assert_allclose(cupy.asnumpy(gradients.dk), reference.dk, atol=1e-4)
    reversed_rows, _ = _reference.attention(arrays[0][:, :, ::-1], *arrays[1:])
    np.testing.assert_allclose(cupy.asnumpy(strided), reversed_rows, atol=1e-5)


def test_libraries_are_not_mixed():
    torch = pytest.importorskip("torch")
    q, k, v = inputs()
    with pytest.raises(TypeError, match="k: is an array of torch, but q is one of numpy"):
        cuflash.attention(q, torch.from_numpy(k), v)
    with pytest.raises(TypeError, match="mask: Tensor is not a numpy array"):
        cuflash.attention(q, k, v, mask=torch.ones(9, 9, dtype=torch.bool))
    with pytest.raises(TypeError, match="computes gradients itself"):
        cuflash.attention_backward(*[torch.from_numpy(q)] * 6)


def test_torch_compile_traces_attention():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x[0]) for x in inputs())
    compiled = torch.compile(lambda q, k, v: cuflash.attention(q, k, v, causal=True), fullgraph=True,
                             backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), cuflash.attention(q, k, v, causal=True), rtol=0, atol=0)
