"""cuflash against PyTorch's scaled_dot_product_attention on the CPU, in one process.

Contestants take turns, inputs are random, and each figure is the best of several turns: what the code can do when the
machine lets it. A ratio above 1 means that cuflash is faster.

    python bench/torch_cpu.py build/release/lib/libcuflash.so --threads 1,2 --dtypes f32,bf16
"""

import argparse
import math
import os
import sys
import time

import torch

from cuflash_c import Library

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
attention = torch.nn.functional.scaled_dot_product_attention


def best_times(contestants, seconds):
    """The best time of each contestant; they take turns until the time is used up, three turns at least."""
    best = [math.inf] * len(contestants)
    end = time.perf_counter() + seconds
    turns = 0
    while turns < 3 or (time.perf_counter() < end and turns < 200):
        for n, run in enumerate(contestants):
            time.sleep(0.003)  # the threads of the one before have stopped spinning by then
            start = time.perf_counter()
            run()
            best[n] = min(best[n], time.perf_counter() - start)
        turns += 1
        if turns >= 2 and time.perf_counter() > end + 4 * seconds:  # a contestant far slower than planned for
            break
    return best


def torch_backward(q, k, v, dout, causal):
    leaves = [t.detach().clone().requires_grad_() for t in (q, k, v)]
    o = attention(*leaves, is_causal=causal)
    return lambda: torch.autograd.grad(o, leaves, dout, retain_graph=True)


def measure(library, dtype, heads, length, dim, causal, threads, seconds):
    shape = (1, heads, length, dim)
    q, k, v, dout = (torch.randn(shape, dtype=torch.float32).to(dtype) for _ in range(4))
    o, dq, dk, dv = (torch.empty(shape, dtype=dtype) for _ in range(4))
    lse = torch.empty(shape[:3], dtype=torch.float32)
    torch.set_num_threads(threads)
    ours = library.forward(q, k, v, o, lse, causal, threads)
    ours()
    with torch.no_grad():
        expected = attention(q.double(), k.double(), v.double(), is_causal=causal)
        error = (o.double() - expected).abs().max().item()
        if not error < 0.1:
            sys.exit(f"wrong result: largest error {error}")
        forward = best_times([ours, lambda: attention(q, k, v, is_causal=causal)], seconds)
    backward = best_times([library.backward(q, k, v, o, lse, dout, dq, dk, dv, causal, threads),
                           torch_backward(q, k, v, dout, causal)], seconds)
    return forward, backward


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--threads", default=f"1,{os.cpu_count()}")
    parser.add_argument("--dtypes", default="f32,bf16,f16")
    parser.add_argument("--lengths", default="128,512,2048,4096")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each measurement")
    args = parser.parse_args()
    numbers = lambda text: [int(part) for part in text.split(",")]

    library = Library(args.library)
    print(f"cuflash {library.lib.cuflash_version().decode()}, torch {torch.__version__}, B=1, H={args.heads}, "
          "milliseconds, ratio = torch / cuflash\n")
    print("| type | threads | D | S | causal | forward | torch | ratio | backward | torch | ratio |")
    print("|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    ratios = {}
    for name in args.dtypes.split(","):
        for threads in dict.fromkeys(numbers(args.threads)):
            for dim in numbers(args.dims):
                for length in numbers(args.lengths):
                    for causal in (False, True):
                        forward, backward = measure(library, DTYPES[name], args.heads, length, dim, causal, threads, args.seconds)
                        cells = [name, threads, dim, length, "yes" if causal else "no"]
                        for direction, (ours, theirs) in (("forward", forward), ("backward", backward)):
                            ratios.setdefault((name, threads, direction), []).append(theirs / ours)
                            cells += [f"{ours * 1e3:.3f}", f"{theirs * 1e3:.3f}", f"{theirs / ours:.2f}"]
                        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    print("\n| type | threads | direction | geometric mean | smallest |\n|---|---|---|---|---|")
    for (name, threads, direction), values in ratios.items():
        mean = math.exp(sum(map(math.log, values)) / len(values))
        print(f"| {name} | {threads} | {direction} | {mean:.2f} | {min(values):.2f} |")


if __name__ == "__main__":
    main()
