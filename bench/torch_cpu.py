"""cuflash against PyTorch's scaled_dot_product_attention on the CPU, in one process.

Contestants take turns, inputs are random, and each figure is the best of several turns: what the code can do when the
machine lets it. A ratio above 1 means that cuflash is faster.

    python bench/torch_cpu.py build/release/lib/libcuflash.so --threads 1,2 --dtypes f32,bf16

With --kv-heads several query heads share a key head. PyTorch then gets K and V both as they are (enable_gqa) and already
expanded to all query heads, without the cost of expanding; the faster counts. Decode steps: bench/decode_torch.py.

PyTorch's 16-bit attention takes minutes for one long sequence on some processors. It then gets a single turn, and is
left out ("over 10 s") where even that would take longer than --patience.
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
    """The best time of each contestant. They take turns, each for its share of the time and at least three times, or
    fewer if a turn takes seconds. A turn is a burst of calls, so that short calls find their threads awake, as in a
    loop over layers. A pause follows each turn, because libgomp's threads spin for some 20 ms after a call, on cores
    that the other contestant needs."""
    best, spent = [math.inf] * len(contestants), [0.0] * len(contestants)
    waiting, turns = list(range(len(contestants))), 0
    while waiting:
        for n in waiting:
            time.sleep(0.05)
            burst = 0.0
            while burst < 0.01:
                start = time.perf_counter()
                contestants[n]()
                elapsed = time.perf_counter() - start
                best[n], burst = min(best[n], elapsed), burst + elapsed
            spent[n] += burst
        turns += 1
        at_least = [3 if t < 1 else 2 if t < 4 else 1 for t in best]
        waiting = [n for n in waiting if turns < at_least[n] or (spent[n] < seconds / 2 and turns < 200)]
    return best


class Patience:
    """Decides whether to leave PyTorch out because one run would take too long, judged by its previous shape."""

    def __init__(self, seconds):
        self.seconds, self.speed = seconds, {}

    def allows(self, kind, operations):
        return kind not in self.speed or operations / self.speed[kind] < self.seconds

    def learn(self, kind, operations, seconds):
        self.speed[kind] = operations / seconds


def torch_calls(q, k, v):
    """The arguments for PyTorch's attention, one set for each way to call it."""
    if q.shape[1] == k.shape[1]:
        return [((q, k, v), {})]
    expanded = [t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v)]
    return [((q, k, v), {"enable_gqa": True}), ((q, *expanded), {})]


def torch_forwards(q, k, v, causal):
    return [lambda tensors=tensors, options=options: attention(*tensors, is_causal=causal, **options)
            for tensors, options in torch_calls(q, k, v)]


def torch_backwards(q, k, v, dout, causal):
    def prepared(tensors, options):
        leaves = [t.detach().clone().requires_grad_() for t in tensors]
        o = attention(*leaves, is_causal=causal, **options)
        return lambda: torch.autograd.grad(o, leaves, dout, retain_graph=True)
    return [prepared(*call) for call in torch_calls(q, k, v)]


def measure(library, dtype, args, length, dim, causal, threads, patience):
    """(cuflash, PyTorch) in seconds, forward and backward. PyTorch's time is None if it would take too long, and
    backward is None if it was not requested."""
    heads, kv_heads, seconds = args.heads, args.kv_heads or args.heads, args.seconds
    q_shape, k_shape = (1, heads, length, dim), (1, kv_heads, length, dim)
    q, k, v, dout = (torch.randn(shape, dtype=torch.float32).to(dtype) for shape in (q_shape, k_shape, k_shape, q_shape))
    o, dq, dk, dv = (torch.empty(shape, dtype=dtype) for shape in (q_shape, q_shape, k_shape, k_shape))
    lse = torch.empty(q_shape[:3], dtype=torch.float32)
    torch.set_num_threads(threads)
    ours = library.forward(q, k, v, o, lse, causal, threads)
    ours()
    with torch.no_grad():
        expected = attention(q.double(), k.double(), v.double(), is_causal=causal, enable_gqa=heads != kv_heads)
    error = (o.double() - expected).abs().max().item()
    if not error < 0.1:
        sys.exit(f"wrong result: largest error {error}")

    def compare(direction, run, make_theirs, products):
        kind, operations = (dtype, threads, dim, causal, direction), 2 * products * heads * length * length * dim
        if not patience.allows(kind, operations):
            return best_times([run], seconds)[0], None
        ours, *theirs = best_times([run, *make_theirs()], seconds)
        patience.learn(kind, operations, min(theirs))
        return ours, min(theirs)

    with torch.no_grad():
        forward = compare("forward", ours, lambda: torch_forwards(q, k, v, causal), 2)
    if args.forward:
        return forward, None
    if forward[1] is None:  # its backward needs its forward
        patience.speed.setdefault((dtype, threads, dim, causal, "backward"), 1.0)
    backward = compare("backward", library.backward(q, k, v, o, lse, dout, dq, dk, dv, causal, threads),
                       lambda: torch_backwards(q, k, v, dout, causal), 5)
    return forward, backward


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--threads", default=f"1,{os.cpu_count()}")
    parser.add_argument("--dtypes", default="f32,bf16,f16")
    parser.add_argument("--lengths", default="128,512,2048,4096")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, help="default: as many as --heads")
    parser.add_argument("--forward", action="store_true", help="leave backward out")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each measurement")
    parser.add_argument("--patience", type=float, default=10.0, help="leave PyTorch out if one run takes longer")
    args = parser.parse_args()
    numbers = lambda text: [int(part) for part in text.split(",")]

    library = Library(args.library)
    print(f"cuflash {library.lib.cuflash_version().decode()}, torch {torch.__version__}, B=1, H={args.heads}, "
          f"{args.kv_heads or args.heads} KV heads, "
          "milliseconds, ratio = torch / cuflash\n")
    directions = ["forward"] if args.forward else ["forward", "backward"]
    print("| type | threads | D | S | causal |" + "".join(f" {name} | torch | ratio |" for name in directions))
    print("|---|---|---|---|---|" + "---|---|---|" * len(directions), flush=True)
    ratios, patience = {}, Patience(args.patience)
    for name in args.dtypes.split(","):
        for threads in dict.fromkeys(numbers(args.threads)):
            for dim in numbers(args.dims):
                for length in numbers(args.lengths):
                    for causal in (False, True):
                        measured = measure(library, DTYPES[name], args, length, dim, causal, threads, patience)
                        cells = [name, threads, dim, length, "yes" if causal else "no"]
                        for direction, (ours, theirs) in zip(directions, measured):
                            if theirs is None:
                                cells += [f"{ours * 1e3:.3f}", f"over {args.patience:g} s", ""]
                                continue
                            ratios.setdefault((name, threads, direction), []).append(theirs / ours)
                            cells += [f"{ours * 1e3:.3f}", f"{theirs * 1e3:.3f}", f"{theirs / ours:.2f}"]
                        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    print("\n| type | threads | direction | geometric mean | smallest |\n|---|---|---|---|---|")
    for (name, threads, direction), values in ratios.items():
        mean = math.exp(sum(map(math.log, values)) / len(values))
        print(f"| {name} | {threads} | {direction} | {mean:.2f} | {min(values):.2f} |")


if __name__ == "__main__":
    main()
