"""Attention over a KV cache on a GPU, against PyTorch's scaled_dot_product_attention, in one process.

    PYTHONPATH=build/release/python python bench/decode_cuda.py [--points 1x8192,128x2048] [--queries 1,2,4] [--json FILE]

Problems are in bf16, with 32 query heads over 8 key heads, head size 128 and one query per sequence. Keys and values
are [B, S, Hk, D] in memory, or in shuffled pages. GB/s count keys and values once. Times are those of CUDA events
around one call with the L2 cache flushed before it; contestants take turns, and a figure is the median of its turns.
PyTorch runs each problem in two forms, grouped heads and the heads of a group as rows of one head (the same result);
the faster one counts.

--graph captures a series of calls in one CUDA graph, each over another cache, like the layers of a model without their
other kernels. A figure is the time per call. Events and launch, which take 3 to 4 us of a short call, then count once
for the whole graph.

--queries measures 1 to 64 queries per sequence (causal): the time, and its ratio to the time of one query.
"""

import argparse
import json
import math

import torch
from torch.nn.attention import sdpa_kernel

import cuflash
from cuda_torch import BACKENDS, Timer, attention

HEADS_Q, HEADS_K, DIM = 32, 8, 128
POINTS = "128x8192,128x2048,16x8192,1x65536,1x8192"
PAGES = (256, 64, 16, 1)
GRAPH_BYTES = 1 << 29  # least size of all caches together: many times the size of L2


class Cache:
    def __init__(self, batch, length, queries=1):
        self.batch, self.length = batch, length
        make = lambda *shape: torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        self.q = make(batch, queries, HEADS_Q, DIM)
        self.k, self.v = make(batch, length, HEADS_K, DIM), make(batch, length, HEADS_K, DIM)
        self.lengths = torch.full((batch,), length, dtype=torch.int32, device="cuda")

    def bytes(self):
        return 2 * self.batch * self.length * HEADS_K * DIM * self.k.element_size()

    def contiguous(self, causal=False):
        return lambda: cuflash.flash_attn_with_kvcache(self.q, self.k, self.v, cache_seqlens=self.lengths, causal=causal)

    def paged(self, size):
        pages = self.batch * self.length // size
        order = torch.randperm(pages, device="cuda")
        place = torch.empty_like(order)
        place[order] = torch.arange(pages, device="cuda")  # page i of the cache lies at place[i]
        k, v = (t.view(pages, size, HEADS_K, DIM)[order] for t in (self.k, self.v))
        table = place.to(torch.int32).view(self.batch, -1)
        return lambda: cuflash.flash_attn_with_kvcache(self.q, k, v, cache_seqlens=self.lengths, block_table=table)

    def torch_groups(self, backend):
        q, k, v = (t.transpose(1, 2) for t in (self.q, self.k, self.v))
        return lambda: attention_by(backend, q, k, v, enable_gqa=True)

    def torch_rows(self, backend):
        q = self.q.view(self.batch, HEADS_K, HEADS_Q // HEADS_K, DIM)
        k, v = (t.transpose(1, 2) for t in (self.k, self.v))
        return lambda: attention_by(backend, q, k, v)


def attention_by(backend, *tensors, **options):
    with torch.no_grad(), sdpa_kernel(backend):
        return attention(*tensors, **options)


def works(function):
    try:
        function()
        torch.cuda.synchronize()
        return True
    except RuntimeError:
        return False


def contestants(cache, pages):
    functions = {"contiguous": cache.contiguous()}
    functions |= {f"pages of {size}": cache.paged(size) for size in pages}
    for name in ("cudnn", "flash"):
        for form, make in (("groups", cache.torch_groups), ("rows", cache.torch_rows)):
            if works(function := make(BACKENDS[name])):
                functions[f"{name}, {form}"] = function
    if "cudnn, rows" in functions:
        expected = functions["cudnn, rows"]().view(cache.batch, 1, HEADS_Q, DIM)
        for name, function in functions.items():
            if not name.startswith(("cudnn", "flash")):
                torch.testing.assert_close(function(), expected, atol=2e-3, rtol=2e-2)
    return functions


def in_a_graph(functions):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for function in functions:
            function()
    return graph.replay


def bandwidth(timer, batch, length, graph):
    cache = Cache(batch, length)
    if graph:
        calls = max(2, math.ceil(GRAPH_BYTES / cache.bytes()))
        each = [contestants(c, (16,)) for c in [cache] + [Cache(batch, length) for _ in range(calls - 1)]]
        times = timer.milliseconds({name: in_a_graph([functions[name] for functions in each]) for name in each[0]})
        times = {name: ms / calls for name, ms in times.items()}
    else:
        times = timer.milliseconds(contestants(cache, PAGES))
    rates = {name: cache.bytes() / ms / 1e6 for name, ms in times.items()}
    cudnn = max((rate for name, rate in rates.items() if name.startswith("cudnn")), default=None)
    print(f"B={batch} Sk={length}" + (f", {calls} calls in a graph" if graph else ""))
    for name, rate in rates.items():
        ratio = f"  {rate / cudnn:6.3f} of cuDNN" if cudnn else ""
        print(f"  {name:16} {times[name] * 1000:9.2f} us {rate:8.0f} GB/s{ratio}"
              f"  {rate / rates['contiguous']:6.3f} of contiguous", flush=True)
    return {"batch": batch, "length": length, "gbs": rates}


def queries(timer, counts, batch, length):
    rows = []
    for count in counts:
        cache = Cache(batch, length, count)
        ms = timer.milliseconds({"ours": cache.contiguous(causal=True)})["ours"]
        rows.append({"batch": batch, "length": length, "queries": count, "ms": ms})
        print(f"B={batch} Sk={length} queries={count:3}  {ms * 1000:9.2f} us  {ms / rows[0]['ms']:6.3f} of the first",
              flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", default=POINTS, help="batch x length of the cache, separated by commas")
    parser.add_argument("--queries", default="", help="measure time for these numbers of queries instead of bandwidth")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.1, help="least time for each contestant at a point")
    parser.add_argument("--warm", action="store_true", help="leave what is in the L2 cache")
    parser.add_argument("--clean", action="store_true", help="leave no dirty lines in the L2 cache before a call")
    parser.add_argument("--ahead", action="store_true", help="do not wait for a call before enqueueing the next")
    parser.add_argument("--graph", action="store_true", help="calls over several caches in a CUDA graph")
    parser.add_argument("--json", help="a file for the figures")
    arguments = parser.parse_args()
    if arguments.graph and arguments.queries:
        parser.error("--graph and --queries: one of them")
    points = [tuple(int(n) for n in point.split("x")) for point in arguments.points.split(",")]
    timer = Timer(arguments.turns, arguments.seconds, arguments.clean, arguments.ahead)
    if arguments.warm:
        timer.flush = timer.flush[:1 << 20]
    print(f"cuflash {cuflash.__version__}, {torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    results = []
    for batch, length in points:
        if arguments.queries:
            results += queries(timer, [int(n) for n in arguments.queries.split(",")], batch, length)
        else:
            results.append(bandwidth(timer, batch, length, arguments.graph))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
