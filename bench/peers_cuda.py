"""Compares cuflash with FlashAttention-3, FlashAttention-4, cuDNN and PyTorch's other kernels on a GPU, in one process.

    python bench/peers_cuda.py build/release/lib/libcuflash.so --json docs/data/h200_peers.json
    python tools/benchmark_tables.py        # updates the tables and charts in the docs from that file

FlashAttention-3 is measured if `flash_attn_interface` can be imported, FlashAttention-4 if `flash_attn.cute` can; the
others come with PyTorch. If a library cannot compute a shape, or is not installed, the file records the reason. Every
result is compared with that of cuflash before it is timed.

Times are those of CUDA events around one call, with the L2 cache flushed before it. The contestants of a shape
alternate and have equally many rounds, a third of which warm up; a figure is the median, with its quartiles.
TFLOP/s count 4 B H Sq Sk D operations forward and 2.5 times that backward, half of it for a causal mask; with a window,
only pairs inside the window count. GB/s of a decode step count the bytes of keys and values once.

The groups of shapes: forward and backward (D 64, 128, 256; 512 to 16384 tokens a sequence, 16384 in the batch), grouped
(32 query heads over 8), short (1 to 128 queries over 8192 keys), varlen (16 packed sequences), window, softcap, decode
(contiguous and in pages).
"""

import argparse
import datetime
import importlib
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FORMAT = "cuflash-bench-1"  # docs/measuring.md
ROUNDS = {"quick": 5, "full": 11}
MODULES = {"fa3": "flash_attn_interface", "fa4": "flash_attn.cute"}
PACKAGES = {"fa3": ("flash_attn_3", "flash-attn-3"), "fa4": ("flash-attn-4", "flash-attn-cute")}


def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="libcuflash.so")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--quick", action="store_true", help="a few shapes, under a minute")
    parser.add_argument("--groups", default="", metavar="NAME,...", help="these groups of shapes alone")
    parser.add_argument("--peers", default="", metavar="NAME,...", help="only these contestants in addition to cuflash")
    parser.add_argument("--seconds", type=float, default=0.05, help="time per contestant and shape (default: 0.05)")
    parser.add_argument("--commit", default="", help="commit of the library, if this is not a git checkout")
    parser.add_argument("--rounds", type=int, default=0, help="at least (default: 11, 5 with --quick)")
    parser.add_argument("--dry-run", action="store_true", help="toy shapes on the CPU: a test of this program")
    options = parser.parse_args(words)
    from peers_calls import PEERS
    from peers_shapes import GROUPS
    choose(parser, options, "groups", GROUPS)
    choose(parser, options, "peers", PEERS)
    require_folder(parser, options, "json")
    options.rounds = options.rounds or ROUNDS["quick" if options.quick else "full"]
    return options


def choose(parser, options, name, known):
    """Replaces the text of a flag by a list of names: all of them if the flag is not given."""
    chosen = [part for part in getattr(options, name).split(",") if part]
    if not set(chosen) <= set(known):
        parser.error(f"--{name} has {', '.join(sorted(set(chosen) - set(known)))}, must be of {', '.join(known)}")
    setattr(options, name, chosen or list(known))


def require_folder(parser, options, name):
    path = getattr(options, name)
    if path is not None and not os.access(path.absolute().parent, os.W_OK):
        parser.error(f"--{name} {path}: its folder cannot be written to")


def quantile(values, fraction):
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


class GpuTimer:
    """Times calls by CUDA events. Host time is not measured, because flushing L2 takes longer than launching a call; a
    slow host path gets several flushes. The host waits for each call before it enqueues the next one, because work
    queued behind a call delays its last event."""

    def __init__(self, rounds, seconds):
        import torch
        self.torch, self.rounds, self.seconds = torch, rounds, seconds
        self.buffer = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        self.flush_seconds = min(self.waited(self.buffer.zero_) for _ in range(5))

    def waited(self, call):
        self.torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        self.torch.cuda.synchronize()
        return time.perf_counter() - began

    def host_seconds(self, call):
        """Host time of a call while the GPU is busy with other work."""
        self.buffer.zero_()
        began = time.perf_counter()
        call()
        spent = time.perf_counter() - began
        self.torch.cuda.synchronize()
        return spent

    def once(self, call, flushes=1):
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(flushes):
            self.buffer.zero_()
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    def milliseconds(self, calls):
        """Lists of times, by the names of the calls."""
        flushes = {}
        for call in calls.values():
            call(), call()
            host = min(self.host_seconds(call) for _ in range(3))
            flushes[call] = min(40, 1 + int(2 * host / self.flush_seconds))
        once = lambda call: self.once(call, flushes[call])
        began = time.perf_counter()
        for call in calls.values():
            once(call)
        spent = time.perf_counter() - began
        return in_rounds(calls, once, max(self.rounds, math.ceil(self.seconds * len(calls) / spent)))

    def ceilings(self):
        """Measured ceilings of this GPU: a large matrix product, and a copy in device memory (a read and a write)."""
        torch = self.torch
        a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
        source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        times = self.milliseconds({"product": lambda: a @ b, "copy": lambda: target.copy_(source)})
        return {"bf16_tflops": 2e-9 * 8192**3 / quantile(times["product"], 0.5),
                "read_gbs": 2e-6 * source.numel() / quantile(times["copy"], 0.5)}


class ClockTimer:
    """Times calls by the host's clock, for --dry-run."""

    def __init__(self, rounds):
        self.rounds = rounds

    def once(self, call):
        began = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - began)

    def milliseconds(self, calls):
        return in_rounds(calls, self.once, self.rounds)

    def ceilings(self):
        return {}


def in_rounds(calls, once, rounds):
    times = {name: [] for name in calls}
    for n in range(rounds + rounds // 2):
        for name, call in calls.items():
            ms = once(call)
            if n >= rounds // 2:
                times[name].append(ms)
    return times


def open_libraries(options):
    """The contestants by name, and for each other one why no shape has it."""
    from peers_calls import BACKENDS, Cuflash, FlashAttention, Torch
    found, missing, versions = {"cuflash": Cuflash(options.library)}, {}, {}
    versions["cuflash"] = found["cuflash"].version()
    for name in options.peers:
        if name in BACKENDS:
            found[name] = Torch(BACKENDS[name])
            continue
        if name == "torch-flex":
            from peers_flex import Flex
            found[name] = Flex()
            continue
        module = MODULES[name]
        try:
            found[name] = FlashAttention(importlib.import_module(module))
            versions[name] = version_of(PACKAGES[name], found[name].module)
        except Exception as error:  # noqa: BLE001: an import can fail in any way
            first = (str(error).splitlines() or [type(error).__name__])[0]
            missing[name] = f"{module} cannot be imported: {first}"[:200]
    return found, missing, versions


def version_of(packages, module):
    from importlib import metadata
    for package in packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            pass
    return str(getattr(module, "__version__", "unknown"))


def measure(shape, libraries, timer, device):
    """The results of a shape, and for each missing contestant the reason."""
    calls, absent = agreeing_calls(shape, libraries, device)
    return best_forms(shape, timer.milliseconds(calls)), absent


def agreeing_calls(shape, libraries, device):
    """Calls by (contestant, form) whose results agree with those of cuflash, and the reason for each contestant
    without one."""
    from peers_calls import Tensors, working_forms
    tensors = Tensors(shape, device)
    calls, absent, expected = {}, {}, None
    for name, library in libraries.items():
        forms, reason = working_forms(library, tensors, expected)
        if not forms:
            absent[name] = reason
        calls |= {(name, form): call for form, call in forms.items()}
        if name == "cuflash":
            if not forms:
                raise SystemExit(f"cuflash fails at {shape}: {reason}")
            call = next(iter(forms.values()))
            result = call()
            expected = tuple(x.clone() for x in result) if isinstance(result, tuple) else result.clone()
            agreeing, why = working_forms(library, tensors, expected)
            if len(agreeing) < len(forms):
                raise SystemExit(f"forms of cuflash disagree at {shape}: {why}")
    return calls, absent


def best_forms(shape, times):
    """The fastest form of each contestant, as an element of "results"."""
    best, reads_a_cache = {}, shape.direction == "decode" and shape.len_q == 1
    for (name, form), values in times.items():
        low, ms, high = (rounded(quantile(values, fraction)) for fraction in (0.25, 0.5, 0.75))
        if name not in best or ms < best[name]["ms"]:
            best[name] = {"contestant": name, **described(shape), "form": form,
                          "ms": ms, "ms_low": low, "ms_high": high,
                          "tflops": rounded(1e-9 * shape.flops / ms),
                          "gbs": rounded(1e-6 * shape.key_value_bytes / ms) if reads_a_cache else None,
                          "share": None, "clock_mhz": None, "extra_bytes": None}
    return list(best.values())


def rounded(value):
    return float(f"{value:.6g}")


def described(shape):
    """The problem of a shape, with the names that the results file uses."""
    return {"device": "cuda", "direction": shape.direction, "dtype": shape.dtype, "batch": shape.batch,
            "heads_q": shape.heads_q, "heads_k": shape.heads_k, "len_q": shape.len_q, "len_k": shape.len_k,
            "head_dim": shape.head_dim, "head_dim_v": shape.dim_v, "causal": shape.causal, "page_size": shape.page_size, "group": shape.group,
            "variant": shape.variant}


def commit():
    """The commit of the checkout that contains this program; "unknown" without git."""
    try:
        command = ["git", "-C", str(ROOT), "rev-parse", "--short=7", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def content_of(words, options, versions, ceilings, results, absences, missing, program="peers_cuda"):
    """The content of the results file. Points with a variant are in a list of their own, because a reader that does not
    know variants would take them for plain points."""
    import torch
    gpu = "dry run" if options.dry_run else torch.cuda.get_device_name()
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"format": FORMAT, "command": " ".join(["python", f"bench/{program}.py", *words]),
            "version": versions["cuflash"], "date": date, "commit": options.commit or commit(),
            "rounds": options.rounds, "seconds": options.seconds,
            "machine": {"cpu": platform.processor() or platform.machine(), "threads": os.cpu_count() or 1, "gpu": gpu},
            "versions": {**versions, "torch": torch.__version__, "cuda": torch.version.cuda or "none",
                         "cudnn": str(torch.backends.cudnn.version())},
            "ceilings": {"cuda": ceilings}, "results": [r for r in results if not r["variant"]],
            "variants": [r for r in results if r["variant"]], "missing": absences, "not_measured": missing}


def write_whole(path, content):
    """Writes the file atomically."""
    text = json.dumps(content, indent=None, allow_nan=False)
    for name in ("results", "variants", "missing"):
        text = text.replace(f'"{name}": [{{', f'"{name}": [\n  {{')
    text = text.replace('}, {"contestant"', '},\n  {"contestant"') + "\n"
    with tempfile.NamedTemporaryFile("w", dir=path.absolute().parent, delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def line_of(shape, results, absent):
    ours = next(r["ms"] for r in results if r["contestant"] == "cuflash")
    cells = []
    for r in results:
        speed = f"{r['gbs']:.0f} GB/s" if r["gbs"] is not None else f"{r['tflops']:.1f} TFLOP/s"
        ratio = "" if r["contestant"] == "cuflash" else f", {r['ms'] / ours:.2f}x"
        cells.append(f"{r['contestant']} {1e3 * r['ms']:.1f} us ({speed}{ratio}; {r['form']})")
    return f"{shape}\n    " + "\n    ".join(cells + [f"{name}: {why}" for name, why in absent.items()])


def open_device(options, program):
    import torch
    if not options.dry_run and not torch.cuda.is_available():
        sys.exit(f"{program}: PyTorch sees no GPU; --dry-run tests this program without one")
    torch.manual_seed(1)
    if options.dry_run:
        return "cpu", ClockTimer(options.rounds)
    return "cuda", GpuTimer(options.rounds, 0 if options.quick else options.seconds)


def introduce(versions, missing, shapes):
    import torch
    print(", ".join(f"{name} {version}" for name, version in versions.items()), f"torch {torch.__version__}",
          f"{shapes} shapes", sep=", ", flush=True)
    for name, why in missing.items():
        print(f"not measured: {name}: {why}", flush=True)


def measure_all(program, words, options, shapes, measure, prepare=None, line_of=line_of):
    """Measures shapes, prints them and writes them to --json; returns the content of that file. A signal ends the run
    and keeps the shapes measured so far."""
    device, timer = open_device(options, program)
    libraries, missing, versions = open_libraries(options)
    introduce(versions, missing, len(shapes))
    words, began = sys.argv[1:] if words is None else words, time.perf_counter()
    ceilings, results, absences, done = timer.ceilings(), [], [], 0

    def content(**more):
        return {**content_of(words, options, versions, ceilings, results, absences, missing, program), **more}

    def save(**more):
        if options.json:  # after each shape, so that an interrupted run keeps its results
            write_whole(options.json, content(**more))

    more = {}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if prepare:
            prepare(shapes, libraries, device)
        for shape in shapes:
            found, absent = measure(shape, libraries, timer, device)
            results += found
            absences += [{"contestant": name, **described(shape), "reason": why} for name, why in absent.items()]
            done += 1
            print(line_of(shape, found, absent), flush=True)
            save()
            empty_cache(device)
    except KeyboardInterrupt:
        more = {"interrupted": f"{done} of {len(shapes)} points were measured"}
        save(**more)
    print(f"{done} of {len(shapes)} shapes in {time.perf_counter() - began:.0f} s", flush=True)
    return content(**more)


def empty_cache(device):
    import torch
    if device == "cuda":
        torch.cuda.empty_cache()


def main(words=None):
    options = arguments(words)
    from peers_shapes import all_shapes, quick_shapes, toy_shapes
    shapes = toy_shapes() if options.dry_run else quick_shapes() if options.quick else all_shapes()
    measure_all("peers_cuda", words, options, [shape for shape in shapes if shape.group in options.groups], measure)


if __name__ == "__main__":
    main()
