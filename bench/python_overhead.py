"""Host time of one call from Python, compared with PyTorch's scaled_dot_product_attention, on a tiny problem.

    python bench/python_overhead.py [--device cuda] [--json out.json]

On CUDA a round fits into the launch queue and the host waits for the device only between rounds, so the time is the
host's alone. On the CPU it includes the computation, of 8 numbers. Contestants take turns, one round at a time. A
figure is the median of the rounds' means, followed by the smallest mean, since noise only adds time.
"""

import argparse
import json
import statistics
import time

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from cuflash import _core
from cuflash._torch import attention
from cuflash.flash_attn_interface import flash_attn_func, flash_attn_qkvpacked_func


def microseconds(function, device, calls):
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - start) / calls * 1e6


def contestants(device):
    """The functions to time, by name. Inputs are [B, S, H, D] and the same memory as [B, H, S, D]."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    shape = (1, 1, 1, 8) if device == "cpu" else (1, 64, 1, 64)
    qkv = torch.randn(*shape[:2], 3, *shape[2:], device=device, dtype=dtype)
    q, k, v = (tensor.contiguous() for tensor in qkv.unbind(2))
    transposed = [tensor.transpose(1, 2) for tensor in (q, k, v)]
    trained = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    trained_transposed = [tensor.transpose(1, 2).detach().requires_grad_() for tensor in (q, k, v)]
    out, lse = torch.empty_like(q), q.new_empty(1, shape[2], shape[1], dtype=torch.float32)
    gradients = [torch.empty_like(q) for _ in range(3)]
    stream = torch.cuda.current_stream().cuda_stream if device == "cuda" else 0
    scalars = ("bshd", None, False, False, -1, -1, 0.0, 0.0, 0, 0, 0, 0, stream, None, 1)
    operator = torch.ops.cuflash.forward.default
    options = ("bshd", None, False, False, -1, -1, 0.0, 0.0, None, 0, 0, 1, False)

    def both_ways(function, inputs, dout):
        return lambda: torch.autograd.grad(function(*inputs), inputs, dout)

    return {
        "SDPA": lambda: sdpa(*transposed),
        "_core.forward": lambda: _core.forward(q, k, v, out, lse, *[None] * 8, *scalars),
        "_core.backward": lambda: _core.backward(q, k, v, out, lse, q, None, *gradients, *[None] * 10, *scalars),
        "attention": lambda: attention(*transposed),
        "flash_attn_func": lambda: flash_attn_func(q, k, v),
        "flash_attn_qkvpacked_func": lambda: flash_attn_qkvpacked_func(qkv),
        "flash_attn_func, dropout": lambda: flash_attn_func(q, k, v, 0.1),
        "torch.ops.cuflash.forward": lambda: operator(q, k, v, *[None] * 8, *options),
        "SDPA, graph recorded": lambda: sdpa(*trained_transposed),
        "flash_attn_func, graph recorded": lambda: flash_attn_func(*trained),
        "SDPA, forward + backward": both_ways(sdpa, trained_transposed, torch.ones_like(transposed[0])),
        "flash_attn_func, forward + backward": both_ways(flash_attn_func, trained, torch.ones_like(q)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--json", help="write the figures to this file as well")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    functions = contestants(arguments.device)
    times = {name: [] for name in functions}
    for turn in range(arguments.rounds + 1):
        for name, function in functions.items():
            time_of_call = microseconds(function, arguments.device, arguments.calls)
            if turn > 0:  # the first round compiles and warms up; it does not count
                times[name].append(time_of_call)
    print(f"PyTorch {torch.__version__}, {arguments.device}, host microseconds a call: median, least")
    figures = {name: statistics.median(measured) for name, measured in times.items()}
    for name, measured in times.items():
        print(f"  {name:38s} {figures[name]:7.2f} {min(measured):7.2f}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
