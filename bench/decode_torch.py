"""One decode step against PyTorch's scaled_dot_product_attention and against the memory of the machine, in one process.

A decode step reads K and V once and does little else, so its ceiling is the speed of a plain read of as many bytes
(stream), measured in the same run. Contestants take turns; each figure is the best of several turns. PyTorch gets K and V
both as they are (enable_gqa) and already expanded to all query heads, without the cost of expanding; the faster counts.

    python bench/decode_torch.py build/release/lib/libcuflash.so --threads 1,2 --dtypes f32,bf16
"""

import argparse
import ctypes
import math
import os
import pathlib
import sys
import time

import torch

from cuflash_c import Library

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
attention = torch.nn.functional.scaled_dot_product_attention


def stream_reader(library_path):
    stream = ctypes.CDLL(str(pathlib.Path(library_path).with_name("libcuflash_stream.so")))
    stream.stream_read_seconds.restype = ctypes.c_double
    stream.stream_read_seconds.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def read(tensors, threads):
        return sum(stream.stream_read_seconds(t.data_ptr(), t.numel() * t.element_size(), threads) for t in tensors)

    return read


def timed(run):
    def seconds():
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    return seconds


def best_times(contestants, seconds):
    """The best time of each contestant. They time themselves and take turns until the time is used up, at least five
    turns each."""
    best = [math.inf] * len(contestants)
    end = time.perf_counter() + seconds
    turns = 0
    while turns < 5 or (time.perf_counter() < end and turns < 500):
        for n, contestant in enumerate(contestants):
            time.sleep(0.003)  # long enough for the previous contestant's threads to stop spinning
            best[n] = min(best[n], contestant())
        turns += 1
    return best


def measure(library, read, dtype, args, tokens, layout, threads):
    heads, kv_heads, keys, dim = args.heads, args.kv_heads, args.keys, args.dim
    def tensor(count, length):
        if layout == "BHSD":
            return torch.randn(args.batch, count, length, dim).to(dtype)
        return torch.randn(args.batch, length, count, dim).to(dtype).transpose(1, 2)
    q, k, v = tensor(heads, tokens), tensor(kv_heads, keys), tensor(kv_heads, keys)
    o = torch.empty_like(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32)
    torch.set_num_threads(threads)
    ours = library.forward(q, k, v, o, lse, False, threads)
    ours()
    with torch.no_grad():
        group = heads // kv_heads
        expanded = [t.repeat_interleave(group, 1) if group > 1 else t for t in (k, v)]
        error = (o.double() - attention(q.double(), *(t.double() for t in expanded))).abs().max().item()
        if not error < 0.1:
            sys.exit(f"wrong result: largest error {error}")
        stream, mine, *theirs = best_times(
            [lambda: read((k, v), threads), timed(ours),
             timed(lambda: attention(q, k, v, enable_gqa=True)), timed(lambda: attention(q, *expanded))], args.seconds)
    return stream, mine, min(theirs), 2 * k.numel() * k.element_size() * 1e-9


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--threads", default=f"1,{os.cpu_count()}")
    parser.add_argument("--dtypes", default="f32,bf16,f16")
    parser.add_argument("--layouts", default="BHSD,BSHD")
    parser.add_argument("--tokens", default="1")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--keys", type=int, default=16384)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each measurement")
    args = parser.parse_args()
    numbers = lambda text: [int(part) for part in text.split(",")]

    library, read = Library(args.library), stream_reader(args.library)
    print(f"cuflash {library.lib.cuflash_version().decode()}, torch {torch.__version__}, B={args.batch}, "
          f"Hq={args.heads}, Hk={args.kv_heads}, Sk={args.keys}, D={args.dim}; GB/s of K and V; share = of stream; "
          "ratio = torch / cuflash\n")
    print("| type | threads | layout | tokens | ms | GB/s | stream GB/s | share | torch ms | ratio |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for name in args.dtypes.split(","):
        for threads in dict.fromkeys(numbers(args.threads)):
            for layout in args.layouts.split(","):
                for tokens in numbers(args.tokens):
                    stream, mine, theirs, gigabytes = measure(library, read, DTYPES[name], args, tokens, layout, threads)
                    print(f"| {name} | {threads} | {layout} | {tokens} | {mine * 1e3:.3f} | {gigabytes / mine:.1f} | "
                          f"{gigabytes / stream:.1f} | {100 * stream / mine:.0f}% | {theirs * 1e3:.3f} | "
                          f"{theirs / mine:.2f} |", flush=True)


if __name__ == "__main__":
    main()
