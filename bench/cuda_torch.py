"""cuflash against PyTorch's scaled_dot_product_attention backends on a GPU, forward and backward, in one process.

Times are those of CUDA events around one call, with the L2 cache flushed before it; contestants take turns, and a figure
is the median of its turns. TFLOP/s count 4 B H S^2 D operations forward (half of them causal) and 2.5 times that
backward. A ratio above 1 means that cuflash is faster.

    python bench/cuda_torch.py build/release/lib/libcuflash.so [--quick] [--dtypes bf16,f32] [--fa3 anchors.json]

Every batch has 16384 tokens and a hidden size of 2048, in memory [B, S, H, D].

FlashAttention-3 is not part of PyTorch. If another run measured it together with cuDNN, --fa3 names a file with the
ratio of the two, {"bf16": [{"head_dim", "causal", "seqlen", "fa3_over_cudnn_fwd", "fa3_over_cudnn_bwd"}, ...]}; its
time here is estimated from that ratio and from cuDNN's time in this run. "best" is the faster of the two.
"""

import argparse
import json
import math
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from cuflash_c import Library

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}
TOKENS, HIDDEN = 16384, 2048
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
attention = torch.nn.functional.scaled_dot_product_attention


class Timer:
    """Measures the median time of several functions that take turns, long enough that the GPU settles at the clock it
    can hold under this load. Host time is not measured: the host launches a call while the GPU still runs the flush of
    the L2 cache. Without `ahead` the host waits for each call before it enqueues the next, because work queued behind a
    call adds up to 0.6 us between the call's events. After the flush L2 holds dirty lines, whose write-back delays the
    call; with `clean` the flush also reads its buffer, which leaves clean lines."""

    def __init__(self, turns, seconds=0.1, clean=False, ahead=False):
        self.turns, self.seconds, self.clean, self.ahead = turns, seconds, clean, ahead
        self.flush = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")

    def once(self, function):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.flush.zero_()
        if self.clean:
            self.flush.view(torch.int64).sum()
        start.record()
        function()
        end.record()
        if not self.ahead:
            end.synchronize()
        return start, end

    def milliseconds(self, functions):
        for function in functions.values():
            function(), function()
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        for function in functions.values():
            self.once(function)
        ended.record()
        torch.cuda.synchronize()
        turns = max(self.turns, math.ceil(1000 * self.seconds * len(functions) / began.elapsed_time(ended)))
        events = {name: [] for name in functions}
        for turn in range(turns + turns // 2):  # the first third warms up
            for name, function in functions.items():
                pair = self.once(function)
                if turn >= turns // 2:
                    events[name].append(pair)
        torch.cuda.synchronize()
        return {name: sorted(s.elapsed_time(e) for s, e in pairs)[len(pairs) // 2] for name, pairs in events.items()}


class Problem:
    def __init__(self, dtype, dim, length, causal):
        self.batch, self.heads, self.length, self.dim, self.causal = TOKENS // length, HIDDEN // dim, length, dim, causal
        shape = (self.batch, length, self.heads, dim)
        make = lambda: torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype).transpose(1, 2)
        self.q, self.k, self.v, self.dout = make(), make(), make(), make()
        self.o, self.dq, self.dk, self.dv = (torch.empty_like(self.q) for _ in range(4))
        self.lse = torch.empty((self.batch, self.heads, length), dtype=torch.float32, device="cuda")

    def flops(self, direction):
        forward = 4 * self.batch * self.heads * self.length ** 2 * self.dim / (2 if self.causal else 1)
        return forward * (1 if direction == "forward" else 2.5)

    def ours(self, library, direction, **how):
        if direction == "forward":
            return library.forward(self.q, self.k, self.v, self.o, self.lse, self.causal)
        return library.backward(self.q, self.k, self.v, self.o, self.lse, self.dout, self.dq, self.dk, self.dv,
                                self.causal, **how)

    def torch_forward(self, backend):
        def run():
            with torch.no_grad(), sdpa_kernel(backend):
                return attention(self.q, self.k, self.v, is_causal=self.causal)
        return run

    def torch_backward(self, backend):
        """Runs only the backward operator if it can be called directly, otherwise autograd on a retained graph."""
        if backend == SDPBackend.FLASH_ATTENTION:
            try:
                return self.flash_backward()
            except (AttributeError, TypeError, ValueError, RuntimeError):
                pass  # another version of PyTorch, with another signature
        leaves = [t.detach().requires_grad_() for t in (self.q, self.k, self.v)]
        with sdpa_kernel(backend):
            out = attention(*leaves, is_causal=self.causal)
        return lambda: torch.autograd.grad(out, leaves, self.dout, retain_graph=True)

    def flash_backward(self):
        with torch.no_grad():
            saved = torch.ops.aten._scaled_dot_product_flash_attention(self.q, self.k, self.v, 0.0, self.causal)
        out, lse, cum_q, cum_k, max_q, max_k, seed, offset = saved[:8]
        run = lambda: torch.ops.aten._scaled_dot_product_flash_attention_backward(
            self.dout, self.q, self.k, self.v, out, lse, cum_q, cum_k, max_q, max_k, 0.0, self.causal, seed, offset)
        run()
        return run

    def torch_function(self, name, direction):
        """The call, or None if this backend rejects the problem."""
        try:
            make = self.torch_forward if direction == "forward" else self.torch_backward
            function = make(BACKENDS[name])
            function()
            torch.cuda.synchronize()
            return function
        except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
            print(f"  ({name} {direction}: {str(error).splitlines()[0][:100]})", file=sys.stderr)
            return None

    def require_right(self, library, direction):
        """Checks our result against PyTorch in float32 on two heads of the last batch entry; exits if it is wrong."""
        self.ours(library, "forward")()
        results = {"o": self.o}
        if direction == "backward":
            self.ours(library, "backward")()
            results.update(dq=self.dq, dk=self.dk, dv=self.dv)
        part = lambda t: t[-1:, -2:].detach().float().requires_grad_()
        q, k, v = part(self.q), part(self.k), part(self.v)
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            expected = attention(q, k, v, is_causal=self.causal)
        gradients = torch.autograd.grad(expected, (q, k, v), self.dout[-1:, -2:].float())
        for (name, ours), theirs in zip(results.items(), (expected.detach(), *gradients)):
            error = ((ours[-1:, -2:].float() - theirs).norm() / theirs.norm()).item()
            if not error < 0.02:
                sys.exit(f"wrong result: {name} differs by {error:.4f} of its norm (D={self.dim} S={self.length})")


def grid(dims, lengths):
    return [(dim, causal, length) for dim in dims for causal in (False, True) for length in lengths]


class Fa3:
    """Times of FlashAttention-3, estimated from those of cuDNN."""

    def __init__(self, path):
        self.ratios = {}
        if path:
            with open(path) as file:
                anchors = json.load(file)
            for row in anchors.get("gqa_causal_bf16", []):
                self.ratios["grouped", row["q_heads"], row["kv_heads"], row["seqlen"]] = row["fa3"] / row["cudnn"]
            for row in anchors["bf16"]:
                for direction, key in (("forward", "fwd"), ("backward", "bwd")):
                    point = (direction, row["head_dim"], row["causal"], row["seqlen"])
                    self.ratios[point] = row[f"fa3_over_cudnn_{key}"]

    def place(self, times, direction, problem):
        ratio = self.ratios.get((direction, problem.dim, problem.causal, problem.length))
        if ratio and "cudnn" in times:
            times["fa3"] = times["cudnn"] / ratio
            times["best"] = min(times["fa3"], times["cudnn"])


def table(library, timer, fa3, dtype_name, direction, dims, lengths, contestants):
    """Prints one row per shape; returns the ratios to each contestant."""
    if fa3.ratios and dtype_name != "f32" and "cudnn" in contestants:
        contestants = [*contestants, "fa3", "best"]
    ratios = {name: [] for name in contestants}
    print(f"\n### {direction}, {dtype_name} (TFLOP/s; ratio = theirs' time / cuflash's time)\n")
    print("| D | causal | S | cuflash | " + " | ".join(f"{name} | ratio" for name in contestants) + " |")
    print("|" + "---|" * (4 + 2 * len(contestants)), flush=True)
    for dim, causal, length in grid(dims, lengths):
        problem = Problem(DTYPES[dtype_name], dim, length, causal)
        problem.require_right(library, direction)
        functions = {"cuflash": problem.ours(library, direction)}
        for name in BACKENDS.keys() & set(contestants):
            if function := problem.torch_function(name, direction):
                functions[name] = function
        times = timer.milliseconds(functions)
        fa3.place(times, direction, problem)
        speed = lambda name: problem.flops(direction) / times[name] / 1e9
        cells = [dim, "yes" if causal else "no", length, f"{speed('cuflash'):.1f}"]
        for name in contestants:
            if name in times:
                ratios[name].append((times[name] / times["cuflash"], (dim, causal, length)))
                cells += [f"{speed(name):.1f}", f"{ratios[name][-1][0]:.2f}"]
            else:
                cells += ["-", "-"]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
        del problem, functions
        torch.cuda.empty_cache()
    return ratios


def grouped_heads(library, timer, fa3, heads=32, heads_k=8, dim=128):
    """Forward with fewer heads of keys than of queries, causal, bf16."""
    print(f"\n### Forward, bf16, {heads} heads of queries, {heads_k} of keys, D={dim}, causal (TFLOP/s)\n")
    print("| S | cuflash | cudnn | ratio | fa3 | ratio |\n|---|---|---|---|---|---|")
    for length in (2048, 8192):
        make = lambda h: torch.randn((TOKENS // length, length, h, dim), device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        q, k, v = make(heads), make(heads_k), make(heads_k)
        o, lse = torch.empty_like(q), torch.empty(q.shape[:3], dtype=torch.float32, device="cuda")

        def cudnn():
            with torch.no_grad(), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return attention(q, k, v, is_causal=True, enable_gqa=True)

        ours = library.forward(q, k, v, o, lse, True)
        ours()
        error = ((o - cudnn()).float().norm() / o.float().norm()).item()
        if not error < 0.02:
            sys.exit(f"wrong result: grouped heads differ by {error:.4f} of their norm (S={length})")
        times = timer.milliseconds({"cuflash": ours, "cudnn": cudnn})
        speed = {name: 2 * TOKENS * length * heads * dim / time / 1e9 for name, time in times.items()}
        cells = [length, f"{speed['cuflash']:.1f}", f"{speed['cudnn']:.1f}", f"{speed['cuflash'] / speed['cudnn']:.2f}"]
        ratio = fa3.ratios.get(("grouped", heads, heads_k, length))
        placed = ratio and speed["cudnn"] * ratio
        cells += [f"{placed:.1f}", f"{speed['cuflash'] / placed:.2f}"] if placed else ["-", "-"]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def training(library, timer, fa3):
    """Times forward and backward as one step, and the cost of deterministic gradients."""
    print("\n### A training step, bf16, causal: forward and backward (ms; ratio = theirs' time / cuflash's time)\n")
    print("| D | S | cuflash | cudnn | ratio | fa3 | ratio |\n|---|---|---|---|---|---|---|", flush=True)
    for dim, length in ((64, 4096), (128, 4096), (256, 4096)):
        problem = Problem(torch.bfloat16, dim, length, True)
        problem.require_right(library, "backward")
        forward, backward = (problem.ours(library, direction) for direction in ("forward", "backward"))
        theirs = [problem.torch_function("cudnn", direction) for direction in ("forward", "backward")]
        times = timer.milliseconds({"step": lambda: (forward(), backward()), "forward": theirs[0], "backward": theirs[1]})
        step, cudnn, placed = times["step"], times["forward"] + times["backward"], 0.0
        for direction in ("forward", "backward"):
            ratio = fa3.ratios.get((direction, dim, True, length))
            placed = placed + times[direction] / ratio if ratio else math.nan
        print(f"| {dim} | {length} | {step:.3f} | {cudnn:.3f} | {cudnn / step:.3f} | {placed:.3f} | {placed / step:.3f} |",
              flush=True)
    print("\n### Deterministic gradients, bf16 (usual time / deterministic time)\n")
    print("| D | causal | 512 | 2048 | 8192 |\n|---|---|---|---|---|", flush=True)
    for dim in (64, 128, 256):
        for causal in (False, True):
            cells = [dim, "yes" if causal else "no"]
            for length in (512, 2048, 8192):
                problem = Problem(torch.bfloat16, dim, length, causal)
                problem.ours(library, "forward")()
                times = timer.milliseconds({"usual": problem.ours(library, "backward"),
                                            "deterministic": problem.ours(library, "backward", deterministic=True)})
                cells.append(f"{times['usual'] / times['deterministic']:.3f}")
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def accuracy(library):
    """Prints the largest error of f32 forward against float64, of cuflash and of EFFICIENT_ATTENTION."""
    problem = Problem(torch.float32, 64, 1024, True)
    problem.ours(library, "forward")()
    q, k, v = (t[:1].double() for t in (problem.q, problem.k, problem.v))
    with sdpa_kernel(SDPBackend.MATH):
        exact = attention(q, k, v, is_causal=True)
    with torch.no_grad(), sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        theirs = attention(problem.q, problem.k, problem.v, is_causal=True)[:1]
    largest = lambda t: (t.double() - exact).abs().max().item()
    print(f"\nLargest error of f32 forward (D=64, S=1024, causal): cuflash {largest(problem.o[:1]):.1e}, "
          f"efficient {largest(theirs):.1e}")


def against_math(library, timer, dim=64, length=4096):
    """Compares time, and memory in addition to the inputs, with PyTorch's unfused path, forward plus backward."""
    def peak(function):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    print(f"\n### Against MATH, bf16, D={dim}, S={length}, forward and backward\n")
    print("| causal | cuflash ms | math ms | ratio | cuflash MB | math MB | share |\n|---|---|---|---|---|---|---|")
    for causal in (False, True):
        problem = Problem(torch.bfloat16, dim, length, causal)
        problem.o = problem.dq = problem.dk = problem.dv = problem.lse = None

        def ours():
            problem.o, problem.dq, problem.dk, problem.dv = (torch.empty_like(problem.q) for _ in range(4))
            problem.lse = torch.empty(problem.q.shape[:3], dtype=torch.float32, device="cuda")
            problem.ours(library, "forward")()
            problem.ours(library, "backward")()

        def math_path():
            leaves = [t.detach().requires_grad_() for t in (problem.q, problem.k, problem.v)]
            with sdpa_kernel(SDPBackend.MATH):
                torch.autograd.grad(attention(*leaves, is_causal=causal), leaves, problem.dout)

        times = timer.milliseconds({"cuflash": ours, "math": math_path})
        problem.o = problem.dq = problem.dk = problem.dv = problem.lse = None
        memory = [peak(function) / 2**20 for function in (ours, math_path)]
        print(f"| {'yes' if causal else 'no'} | {times['cuflash']:.2f} | {times['math']:.2f} | "
              f"{times['math'] / times['cuflash']:.1f} | {memory[0]:.0f} | {memory[1]:.0f} | {memory[0] / memory[1]:.1%} |",
              flush=True)
        del problem
        torch.cuda.empty_cache()


def summary(results):
    print("\n### Ratios\n\n| type | direction | against | points | geometric mean | smallest | at |\n|---|---|---|---|---|---|---|")
    for (dtype, direction), ratios in results.items():
        for name, values in ratios.items():
            if not values:
                continue
            mean = math.exp(sum(math.log(ratio) for ratio, _ in values) / len(values))
            worst, (dim, causal, length) = min(values)
            print(f"| {dtype} | {direction} | {name} | {len(values)} | {mean:.3f} | {worst:.3f} | "
                  f"D={dim} S={length}{' causal' if causal else ''} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--dtypes", default="bf16,f32")
    parser.add_argument("--directions", default="forward,backward")
    parser.add_argument("--dims", default="64,128,256")
    parser.add_argument("--lengths", default="", help="default: 512 to 16384; f32: 512, 2048, 8192")
    parser.add_argument("--turns", type=int, default=9, help="at least")
    parser.add_argument("--seconds", type=float, default=0.1, help="of each contestant at each point")
    parser.add_argument("--quick", action="store_true", help="three lengths, two contestants, few turns")
    parser.add_argument("--contestants", default="", help="default: flash, cudnn, efficient; f32: efficient")
    parser.add_argument("--fa3", default="", help="speed of FlashAttention-3 relative to cuDNN (see above)")
    parser.add_argument("--training", action="store_true", help="steps of training and deterministic gradients alone")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("cuda_torch: PyTorch sees no GPU")

    torch.manual_seed(1)
    library, fa3 = Library(args.library), Fa3(args.fa3)
    timer = Timer(5, 0) if args.quick else Timer(args.turns, args.seconds)
    print(f"cuflash {library.lib.cuflash_version().decode()}, torch {torch.__version__}, cuDNN "
          f"{torch.backends.cudnn.version()}, {torch.cuda.get_device_name()}, {TOKENS} tokens, hidden size {HIDDEN}, "
          f"medians of at least {timer.turns} turns and {timer.seconds} s, L2 flushed")
    if args.training:
        return training(library, timer, fa3)
    results, names = {}, lambda text: [part for part in text.split(",") if part]
    for dtype in names(args.dtypes):
        wide = dtype == "f32"
        lengths = [int(n) for n in names(args.lengths)] or ((512, 2048, 8192) if wide or args.quick else LENGTHS)
        contestants = names(args.contestants) or (
            ["efficient"] if wide else ["flash", "cudnn"] if args.quick else ["flash", "cudnn", "efficient"])
        for direction in names(args.directions):
            results[dtype, direction] = table(library, timer, fa3, dtype, direction,
                                              [int(d) for d in names(args.dims)], lengths, contestants)
        if wide:
            accuracy(library)
    if "bf16" in names(args.dtypes) and "forward" in names(args.directions):
        grouped_heads(library, timer, fa3)
    if "bf16" in names(args.dtypes) and len(names(args.directions)) == 2:
        against_math(library, timer)
    summary(results)


if __name__ == "__main__":
    main()
