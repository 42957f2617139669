"""`python -m cuflash`: describes this build and this machine, then checks results against float64 NumPy."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from . import _core
from ._flags import FlagParser


class Problem(NamedTuple):
    """One call of the self-check."""

    name: str
    heads_q: int
    heads_k: int
    len_q: int
    len_k: int
    options: Dict[str, Any]


# Type, then the largest error allowed: of results, and of gradients relative to the largest one.
TYPES: Tuple[Tuple[str, float, float], ...] = (
    ("float64", 1e-12, 1e-12),
    ("float32", 1e-5, 1e-4),
    ("float16", 4e-3, 2e-2),
)


def problems(rng: Any, kind: str) -> Iterator[Problem]:
    """Problems with odd sizes that use every option once."""
    import numpy as np

    yield Problem("plain", 2, 2, 37, 65, {})
    yield Problem("causal, grouped heads", 4, 2, 129, 129, {"causal": True})
    yield Problem("window, softcap", 2, 1, 70, 90, {"window": (16, 3), "softcap": 5.0})
    bias, sink = rng.standard_normal((2, 1, 33, 50)).astype(kind), rng.standard_normal(2).astype(kind)
    yield Problem("bias, sink", 2, 2, 33, 50, {"bias": bias, "sink": sink})
    mask, slopes = rng.random((2, 1, 40, 40)) < 0.7, np.array([0.5, 0.25, 0.125], np.float32)
    yield Problem("mask, ALiBi", 3, 1, 40, 40, {"mask": mask, "alibi_slopes": slopes})
    lengths = {"seqlens_q": np.array([30, 7], np.int32), "seqlens_k": np.array([11, 64], np.int32)}
    yield Problem("lengths, dropout", 2, 2, 30, 64, {**lengths, "dropout_p": 0.25, "dropout_seed": 1234})


def run_on_cpu(q: Any, k: Any, v: Any, dout: Any, options: Dict[str, Any]) -> List[Any]:
    """out, lse and the gradients, computed by the library on the CPU."""
    import cuflash

    out, lse = cuflash.attention(q, k, v, return_lse=True, **options)
    gradients = cuflash.attention_backward(dout, q, k, v, out, lse, **options)
    return [out, lse, *(g for g in gradients if g is not None)]


def run_on_cuda(q: Any, k: Any, v: Any, dout: Any, options: Dict[str, Any]) -> List[Any]:
    """out, lse and the gradients, computed on the current CUDA device with PyTorch tensors."""
    import numpy as np
    import torch

    import cuflash

    def there(x: Any, gradient: bool = False) -> Any:
        return torch.from_numpy(x).cuda().requires_grad_(gradient) if isinstance(x, np.ndarray) else x

    inputs = [there(x, True) for x in (q, k, v)]
    options = {name: there(x, name in ("bias", "sink")) for name, x in options.items()}
    out, lse = cuflash.attention(*inputs, return_lse=True, **options)
    wanted = inputs + [options[name] for name in ("bias", "sink") if name in options]
    # Backward runs in this thread, because an autograd thread that releases Python objects at exit aborts the process.
    with torch.autograd.set_multithreading_enabled(False):
        gradients = torch.autograd.grad(out, wanted, there(dout))
    return [x.detach().cpu().numpy() for x in (out, lse, *gradients)]


def error_of(result: Any, expected: Any) -> float:
    """The largest difference; infinite if NaN or Inf are not at the same positions."""
    import numpy as np

    result = np.asarray(result, np.float64)
    if result.shape != expected.shape or not np.array_equal(np.isfinite(result), np.isfinite(expected)):
        return np.inf
    if not np.array_equal(result[~np.isfinite(result)], expected[~np.isfinite(expected)]):
        return np.inf
    finite = np.isfinite(expected)
    return float(np.abs(result[finite] - expected[finite]).max(initial=0.0))


def errors_of(run: Callable[..., List[Any]], problem: Problem, kind: str, rng: Any) -> List[Tuple[float, float]]:
    """(error, largest value) of out, lse and each gradient."""
    import numpy as np

    from . import _reference

    def draw(heads: int, length: int, dim: int) -> Any:
        return rng.standard_normal((2, heads, length, dim)).astype(kind)

    q, dout = draw(problem.heads_q, problem.len_q, 48), draw(problem.heads_q, problem.len_q, 40)
    k, v = draw(problem.heads_k, problem.len_k, 48), draw(problem.heads_k, problem.len_k, 40)
    gradients = _reference.attention_backward(dout, q, k, v, **problem.options)
    expected = [*_reference.attention(q, k, v, **problem.options), *(g for g in gradients if g is not None)]
    results = run(q, k, v, dout, problem.options)
    assert len(results) == len(expected)
    return [(error_of(r, e), float(np.abs(e).max())) for r, e in zip(results, expected)]


def self_check(run: Callable[..., List[Any]], device: str) -> bool:
    """Runs every problem in every type and prints a line per type. True if all agree."""
    import numpy as np

    passed = True
    for kind, allowed, allowed_gradient in TYPES:
        rng = np.random.default_rng(0)
        worst, count, failures = 0.0, 0, []
        for problem in problems(rng, kind):
            errors = errors_of(run, problem, kind, rng)
            count, worst = count + 1, max(worst, *(error for error, _ in errors[:2]))
            good = all(error <= allowed for error, _ in errors[:2])
            good = good and all(error <= allowed_gradient * max(1.0, largest) for error, largest in errors[2:])
            if not good:
                failures.append(problem.name)
        verdict = "passed" if not failures else "FAILED: " + ", ".join(failures)
        print(f"self-check   {device} {kind}: {count} problems, forward and backward, largest error of results "
              f"{worst:.1e}: {verdict}")
        passed = passed and not failures
    return passed


def why_not(device: str) -> str:
    """Why the self-check cannot run; "" if it can."""
    try:
        import numpy  # noqa: F401
    except ImportError:
        return "it needs NumPy (pip install numpy)"
    if device == "cuda":
        try:
            import torch
        except ImportError:
            return "on a GPU it needs PyTorch"
        if not torch.cuda.is_available():
            return f"PyTorch {torch.__version__} sees no GPU"
    return ""


def main(words: Optional[List[str]] = None, program: str = "python -m cuflash") -> int:
    """Prints info, checks, and returns the exit code."""
    parser = FlagParser(prog=program, description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where to check; cuda needs PyTorch")
    device = parser.parse_args(words).device
    try:
        print(_core.info(), end="")
    except (ValueError, RuntimeError) as error:  # an invalid setting in the environment
        print(f"cuflash: {error}", file=sys.stderr)
        return 2
    if why_not(device):
        print(f"self-check   not run: {why_not(device)}", file=sys.stderr)
        return 1
    try:
        return 0 if self_check(run_on_cuda if device == "cuda" else run_on_cpu, device) else 1
    except (ValueError, RuntimeError, MemoryError) as error:
        print(f"self-check   {device} could not run: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
