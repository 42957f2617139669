"""cuflash and every backend of PyTorch's scaled_dot_product_attention, by name, over a grid of problems.

Grids, presets and the file of results are those of `cuflash bench`. Contestants take turns in
one process, and must agree first."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Optional

from .._whole_file import write_whole
from .grid import GridError, Point, add_flags, points


def arguments(words: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m cuflash.bench", description=__doc__)
    add_flags(parser)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: a GPU where PyTorch sees one")
    parser.add_argument("--contestant", default="", metavar="NAME,...",
                        help="of cuflash, torch-flash, torch-cudnn, torch-efficient, torch-math (default: all)")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each contestant at each point (default: 0.3)")
    parser.add_argument("--threads", type=int, default=0, help="on the CPU, of cuflash and PyTorch (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results, for python -m cuflash.plot")
    options = parser.parse_args(words)
    if not 0 < options.seconds <= 600:
        parser.error(f"--seconds is {options.seconds:g}, must be larger than 0 and at most 600")
    if not 0 <= options.threads <= 4096:
        parser.error(f"--threads is {options.threads}, must be from 1 to 4096")
    if options.json is not None and not os.access(options.json.absolute().parent, os.W_OK):
        parser.error(f"--json {options.json}: its folder cannot be written to")
    return options


def ceiling_of(point: Point, ceilings: Dict[str, float]) -> Optional[float]:
    """What bounds this point; None where nothing of that kind was measured."""
    if point.direction == "decode":
        return ceilings.get("read_gbs")
    if point.device == "cpu" and point.dtype == "f16":  # computed in f32
        return ceilings.get("f32_tflops")
    return ceilings.get(f"{point.dtype}_tflops")


def result_of(contestant: str, point: Point, times: List[float], ceilings: Dict[str, float],
              extra_bytes: Optional[int]) -> Dict[str, Any]:
    """An element of "results" in the file."""
    from .timing import quantile

    low, ms, high = (quantile(times, fraction) for fraction in (0.25, 0.5, 0.75))
    tflops = 1e-9 * point.operations() / ms
    gbs = 1e-6 * point.key_value_bytes() / ms if point.direction == "decode" else None
    ceiling = ceiling_of(point, ceilings)
    share = None if ceiling is None else (tflops if gbs is None else gbs) / ceiling
    return {"contestant": contestant, **point._asdict(), "ms": ms, "ms_low": low, "ms_high": high,
            "tflops": tflops, "gbs": gbs, "share": share, "clock_mhz": None, "extra_bytes": extra_bytes}


def line_of(result: Dict[str, Any], point: Point) -> str:
    speed = f"{result['tflops']:.3f} TFLOP/s" if result["gbs"] is None else f"{result['gbs']:.1f} GB/s"
    share = "" if result["share"] is None else f"{result['share']:.0%}"
    extra = "" if result["extra_bytes"] is None else f"{result['extra_bytes'] / 2**20:.1f} MiB"
    return (f"{str(point):<48}  {result['contestant']:<15}  {result['ms']:9.4f} ms  "
            f"{result['ms_low']:9.4f} - {result['ms_high']:<9.4f}  {speed:>16}  {share:>5}  {extra}").rstrip()


def measure(options: argparse.Namespace, device: str, names: List[str], grid: List[Point]) -> Dict[str, Any]:
    """The members of the file that are measured; prints them as they come."""
    import torch

    from .problem import Problem, contestants_of
    from .timing import CpuTimer, CudaTimer

    timer = CudaTimer() if device == "cuda" else CpuTimer()
    ceilings = timer.ceilings(sorted({point.dtype for point in grid}), min(options.seconds, 0.3))
    print("ceilings: " + ", ".join(f"{name} {value:.3f}" for name, value in sorted(ceilings.items())), flush=True)
    results: List[Dict[str, Any]] = []
    left_out: Counter = Counter()
    for number, point in enumerate(grid):
        if sys.stderr.isatty():
            print(f"\r{number} of {len(grid)}  {point}\033[K\r", end="", file=sys.stderr, flush=True)
        try:
            problem = Problem(point, options.threads)
            calls, refused = contestants_of(problem, names)
        except (MemoryError, torch.cuda.OutOfMemoryError):
            left_out["everybody, there is not enough memory"] += 1
            continue
        left_out.update(f"{name}: {why}" for name, why in refused.items())
        for name, times in timer.milliseconds(calls, options.seconds).items():
            extra = timer.extra_bytes(calls[name], problem.output_bytes())
            results.append(result_of(name, point, times, ceilings, extra))
            print(line_of(results[-1], point), flush=True)
        del problem, calls
        if device == "cuda":
            torch.cuda.empty_cache()
    for what, count in left_out.items():
        print(f"left out of {count} points: {what}", file=sys.stderr)
    return {"ceilings": {device: ceilings}, "results": results}


def machine(device: str) -> Dict[str, Any]:
    import torch

    import cuflash

    cpu = re.search(r"^cpu +(.+)$", cuflash.info(), re.MULTILINE)
    return {"cpu": cpu.group(1) if cpu else "unknown", "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if device == "cuda" else None}


def write(path: Path, content: Dict[str, Any]) -> None:
    """Whole or not at all."""
    write_whole(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode("utf-8"))


def run(options: argparse.Namespace, words: List[str]) -> int:
    try:
        import torch
    except ImportError:
        print("cuflash.bench: needs PyTorch (pip install torch); `cuflash bench` measures without it", file=sys.stderr)
        return 1
    import cuflash

    from .problem import CONTESTANTS, WrongResult

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    names = options.contestant.split(",") if options.contestant else list(CONTESTANTS)
    try:
        if not set(names) <= set(CONTESTANTS):
            raise GridError(f"--contestant has {options.contestant}, may have {', '.join(CONTESTANTS)}")
        if device == "cuda" and not torch.cuda.is_available():
            raise GridError(f"--device cuda: PyTorch {torch.__version__} sees no GPU")
        grid = points(options, device)
        if options.threads:
            torch.set_num_threads(options.threads)
        torch.manual_seed(1)
        measured = measure(options, device, names, grid)
    except (GridError, WrongResult) as error:
        print(f"cuflash.bench: {error}", file=sys.stderr)
        return 2 if isinstance(error, GridError) else 1
    if options.json is not None:
        date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        command = shlex.join(["python", "-m", "cuflash.bench", *words])
        write(options.json, {"format": "cuflash-bench-1", "command": command, "version": cuflash.__version__,
                             "date": date, "machine": machine(device), **measured})
    return 0


def main(words: Optional[List[str]] = None) -> int:
    words = sys.argv[1:] if words is None else words
    return run(arguments(words), words)


if __name__ == "__main__":
    sys.exit(main())
