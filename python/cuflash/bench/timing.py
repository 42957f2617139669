"""Measures alternating calls, and the ceilings of this machine."""

from __future__ import annotations

import math
import time
from typing import Any, Callable, Dict, List, Optional

import torch

Call = Callable[[], Any]


class CpuTimer:
    """Times calls on the CPU. A turn is a burst of calls, so that short ones find their threads awake. A pause follows
    each turn, because PyTorch's threads spin for a while after a call, on cores that the next contestant needs."""

    def milliseconds(self, calls: Dict[str, Call], seconds: float) -> Dict[str, List[float]]:
        times: Dict[str, List[float]] = {name: [] for name in calls}
        spent = 0.0
        for call in calls.values():
            call()
        while spent < seconds * len(calls) or len(next(iter(times.values()))) < 3:
            for name, call in calls.items():
                time.sleep(0.03)
                burst = 0.0
                while burst < 0.01:
                    start = time.perf_counter()
                    call()
                    elapsed = time.perf_counter() - start
                    times[name].append(1e3 * elapsed)
                    burst += elapsed
                spent += burst
        return times

    def extra_bytes(self, call: Call, outputs: int) -> Optional[int]:
        return None

    def ceilings(self, dtypes: List[str], seconds: float) -> Dict[str, float]:
        found = {"f32_tflops": _product_tflops(self, torch.float32, 1024, seconds)}
        if "bf16" in dtypes and (bf16 := _product_tflops(self, torch.bfloat16, 1024, seconds)) > found["f32_tflops"]:
            found["bf16_tflops"] = bf16
        buffer = torch.ones(64 << 20)
        found["read_gbs"] = 1e-6 * 4 * buffer.numel() / min(self.milliseconds({"read": buffer.sum}, seconds)["read"])
        return found


class CudaTimer:
    """Times calls on a GPU, by CUDA events around each call and with a flush of the L2 cache before it. The host
    launches the call during the flush, so that host time is not measured."""

    def __init__(self) -> None:
        self.flush = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")

    def _once(self, call: Call) -> tuple:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.flush.zero_()
        start.record()
        call()
        end.record()
        return start, end

    def milliseconds(self, calls: Dict[str, Call], seconds: float) -> Dict[str, List[float]]:
        for call in calls.values():
            call(), call()
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        for call in calls.values():
            self._once(call)
        ended.record()
        torch.cuda.synchronize()
        turns = min(2000, max(5, math.ceil(1000 * seconds * len(calls) / max(began.elapsed_time(ended), 1e-3))))
        events: Dict[str, list] = {name: [] for name in calls}
        for turn in range(turns + turns // 2):  # the first third warms up
            for name, call in calls.items():
                pair = self._once(call)
                if turn >= turns // 2:
                    events[name].append(pair)
        torch.cuda.synchronize()
        return {name: [start.elapsed_time(end) for start, end in pairs] for name, pairs in events.items()}

    def extra_bytes(self, call: Call, outputs: int) -> Optional[int]:
        """The peak memory of a call, less what it returns."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = call()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
        del result
        return max(0, peak - before - outputs)

    def ceilings(self, dtypes: List[str], seconds: float) -> Dict[str, float]:
        found = {}
        for name, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16)):
            if name in dtypes:
                found[f"{name}_tflops"] = _product_tflops(self, dtype, 8192, seconds)
        source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        times = self.milliseconds({"copy": lambda: target.copy_(source)}, seconds)["copy"]
        found["read_gbs"] = 2e-6 * source.numel() / quantile(times, 0.5)  # one read and one write per byte
        return found


def _product_tflops(timer: Any, dtype: torch.dtype, size: int, seconds: float) -> float:
    """The rate of a large matrix product."""
    device = "cuda" if isinstance(timer, CudaTimer) else "cpu"
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    times = timer.milliseconds({"product": lambda: a @ b}, seconds)["product"]
    return 1e-9 * 2 * size**3 / (quantile(times, 0.5) if device == "cuda" else min(times))


def quantile(values: List[float], fraction: float) -> float:
    """The quantile of the values, with linear interpolation between sorted values."""
    ordered = sorted(values)
    position = fraction * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
