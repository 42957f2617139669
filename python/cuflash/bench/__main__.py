"""Measures cuflash and every backend of PyTorch's scaled_dot_product_attention over a grid of problems.

Grids, presets and the results file are those of `cuflash bench`. Contestants must agree on the result first, then
alternate in one process."""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import re
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from .._atomic_file import place_of, write_atomically
from .._flags import FlagParser
from .grid import GridError, Point, add_flags, points


def arguments(words: List[str]) -> argparse.Namespace:
    parser = FlagParser(prog="python -m cuflash.bench", description=__doc__)
    add_flags(parser)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: a GPU if PyTorch sees one")
    parser.add_argument("--contestant", default="", metavar="NAME,...",
                        help="cuflash, torch-flash, torch-cudnn, torch-efficient, torch-math (default: all of them)")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each contestant at each point (default: 0.3)")
    parser.add_argument("--threads", type=int, default=0, help="threads of all contestants on the CPU (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results, for python -m cuflash.plot")
    options = parser.parse_args(words)
    if not 0 < options.seconds <= 600:
        parser.error(f"--seconds is {options.seconds:g}, must be larger than 0 and at most 600")
    if not 0 <= options.threads <= 4096:
        parser.error(f"--threads is {options.threads}, must be from 1 to 4096")
    if options.json is not None:
        try:
            place_of(options.json)
        except OSError as error:
            parser.error(f"--json {options.json}: {error.strerror}")
    return options


def ceiling_of(point: Point, ceilings: Dict[str, float]) -> Optional[float]:
    """The measured ceiling of this point; None if nothing of its kind was measured."""
    if point.direction == "decode":
        return ceilings.get("read_gbs")
    if point.device == "cpu" and point.dtype == "f16":  # computed in f32
        return ceilings.get("f32_tflops")
    return ceilings.get(f"{point.dtype}_tflops")


def result_of(contestant: str, point: Point, times: List[float], ceilings: Dict[str, float],
              extra_bytes: Optional[int]) -> Dict[str, Any]:
    """An element of "results" in the results file."""
    from .timing import quantile

    low, ms, high = (quantile(times, fraction) for fraction in (0.25, 0.5, 0.75))
    tflops = 1e-9 * point.operations() / ms
    gbs = 1e-6 * point.key_value_bytes() / ms if point.direction == "decode" else None
    ceiling = ceiling_of(point, ceilings)
    share = None if ceiling is None else (tflops if gbs is None else gbs) / ceiling
    return {"contestant": contestant, **point._asdict(), "ms": ms, "ms_low": low, "ms_high": high,
            "tflops": tflops, "gbs": gbs, "share": share, "clock_mhz": None, "extra_bytes": extra_bytes}


HEADER = (f"{'problem':<48}  {'contestant':<15}  {'median':>12}  {'quartiles':>21}  {'speed':>16}  {'share':>5}  "
          f"{'ratio':>7}  extra memory")


def line_of(result: Dict[str, Any], point: Point, ours: Optional[float]) -> str:
    """ours: the median of cuflash. The ratio says how many times as fast cuflash is."""
    speed = f"{result['tflops']:.3f} TFLOP/s" if result["gbs"] is None else f"{result['gbs']:.1f} GB/s"
    share = "" if result["share"] is None else f"{result['share']:.0%}"
    extra = "" if result["extra_bytes"] is None else f"{result['extra_bytes'] / 2**20:.1f} MiB"
    ratio = "" if ours is None else f"{result['ms'] / ours:.2f}x"
    return (f"{str(point):<48}  {result['contestant']:<15}  {result['ms']:9.4f} ms  "
            f"{result['ms_low']:9.4f} - {result['ms_high']:<9.4f}  {speed:>16}  {share:>5}  {ratio:>7}  "
            f"{extra}").rstrip()


class Measurement:
    """The results so far: whole points only, even if the run ends early."""

    def __init__(self) -> None:
        self.ceilings: Dict[str, float] = {}
        self.results: List[Dict[str, Any]] = []
        self.left_out: Counter = Counter()
        self.finished = 0

    def add(self, point: Point, results: List[Dict[str, Any]]) -> None:
        ours = next((result["ms"] for result in results if result["contestant"] == "cuflash"), None)
        self.results += results
        self.finished += 1
        for result in results:  # counted first: every printed point is finished
            print(line_of(result, point, ours), flush=True)

    def print_summary(self) -> None:
        """Prints the geometric mean of the ratios to each contestant, and what was left out."""
        ours = {key_of(result): result["ms"] for result in self.results if result["contestant"] == "cuflash"}
        ratios: Dict[str, List[float]] = {}
        for result in self.results:
            if result["contestant"] != "cuflash" and key_of(result) in ours:
                ratios.setdefault(result["contestant"], []).append(result["ms"] / ours[key_of(result)])
        for name, values in ratios.items():
            mean = math.exp(sum(map(math.log, values)) / len(values))
            print(f"cuflash is {mean:.2f} times as fast as {name} on average, {min(values):.2f} to {max(values):.2f}, "
                  f"over {len(values)} {'point' if len(values) == 1 else 'points'}", flush=True)
        for what, count in self.left_out.items():
            print(f"left out of {count} {'point' if count == 1 else 'points'}: {what}", file=sys.stderr)


def key_of(result: Dict[str, Any]) -> Point:
    return Point(*(result[name] for name in Point._fields))


def measure(options: argparse.Namespace, device: str, names: List[str], grid: List[Point],
            measurement: Measurement) -> None:
    """Fills the measurement point by point, and prints each point when it is complete."""
    import torch

    from .problem import Problem, contestants_of
    from .timing import CpuTimer, CudaTimer

    timer = CudaTimer() if device == "cuda" else CpuTimer()
    measurement.ceilings = timer.ceilings(sorted({point.dtype for point in grid}), min(options.seconds, 0.3))
    found = ", ".join(f"{name} {value:.3f}" for name, value in sorted(measurement.ceilings.items()))
    print(f"ceilings: {found}\n{HEADER}", flush=True)
    for number, point in enumerate(grid):
        if sys.stderr.isatty():
            print(f"\r{number} of {len(grid)}  {point}\033[K\r", end="", file=sys.stderr, flush=True)
        try:
            problem = Problem(point, options.threads)
        except (MemoryError, RuntimeError):  # PyTorch cannot allocate the tensors
            measurement.left_out["all contestants: there is not enough memory for the tensors"] += 1
            continue
        calls, refused = contestants_of(problem, names)
        measurement.left_out.update(f"{name}: {why}" for name, why in refused.items())
        if calls:
            times = timer.milliseconds(calls, options.seconds)
            measurement.add(point, [
                result_of(name, point, times[name], measurement.ceilings,
                          timer.extra_bytes(calls[name], problem.output_bytes())) for name in calls])
        del problem, calls
        if device == "cuda":
            torch.cuda.empty_cache()


def machine(device: str) -> Dict[str, Any]:
    import torch

    import cuflash

    cpu = re.search(r"^cpu +(.+)$", cuflash.info(), re.MULTILINE)
    return {"cpu": cpu.group(1) if cpu else "unknown", "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if device == "cuda" else None}


def write(path: Path, content: Dict[str, Any]) -> None:
    """Writes the file atomically."""
    write_atomically(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode("utf-8"))


def content_of(words: List[str], device: str, measurement: Measurement) -> Dict[str, Any]:
    """The content of the results file."""
    import cuflash

    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"format": "cuflash-bench-1", "command": shlex.join(["python", "-m", "cuflash.bench", *words]),
            "version": cuflash.__version__, "date": date, "machine": machine(device),
            "ceilings": {device: measurement.ceilings}, "results": measurement.results}


def plan(options: argparse.Namespace) -> Tuple[str, List[str], List[Point]]:
    """Device, contestants and points. Raises GridError."""
    import torch

    from .problem import CONTESTANTS

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    names = options.contestant.split(",") if options.contestant else list(CONTESTANTS)
    if not set(names) <= set(CONTESTANTS):
        raise GridError(f"--contestant has {options.contestant}, may have {', '.join(CONTESTANTS)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise GridError(f"--device cuda: PyTorch {torch.__version__} sees no GPU")
    return device, names, points(options, device)


def run(options: argparse.Namespace, words: List[str]) -> int:
    try:
        import torch
    except ImportError:
        print("cuflash.bench: needs PyTorch (pip install torch); `cuflash bench` of the whole tool, which `make build` "
              "makes, measures without it", file=sys.stderr)
        return 1
    from .problem import WrongResult

    try:
        device, names, grid = plan(options)
    except GridError as error:
        print(f"cuflash.bench: {error}", file=sys.stderr)
        return 2
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    measurement, code = Measurement(), 0
    try:
        measure(options, device, names, grid, measurement)
    except WrongResult as error:
        print(f"cuflash.bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\ncuflash.bench: interrupted after {measurement.finished} of {len(grid)} points", file=sys.stderr)
        code = 130
    measurement.print_summary()
    if options.json is not None and measurement.results:
        write(options.json, content_of(words, device, measurement))
    measured = {result["contestant"] for result in measurement.results}
    if code == 0 and (not measured or "cuflash" in names and "cuflash" not in measured):
        what = "cuflash could not be measured" if measured else "nothing was measured"
        print(f"cuflash.bench: {what}; the reasons are above", file=sys.stderr)
        return 1
    return code


def main(words: Optional[List[str]] = None) -> int:
    words = sys.argv[1:] if words is None else words
    try:
        return run(arguments(words), words)
    except BrokenPipeError:  # for example `| head`, which has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, RuntimeError, MemoryError, OSError) as error:  # from the library, PyTorch or a file
        print(f"cuflash.bench: {(str(error).splitlines() or [type(error).__name__])[0]}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
