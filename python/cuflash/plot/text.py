"""Numbers as people read them."""

from __future__ import annotations

from typing import Optional, Tuple


def length(n: float) -> str:
    """512, 1k, 2k, 1M"""
    n = int(n)
    for unit, letter in ((1 << 20, "M"), (1 << 10, "k")):
        if n >= unit and n % unit == 0:
            return f"{n // unit}{letter}"
    return str(n)


def size(n: float) -> str:
    """0, 64 KiB, 1.5 GiB"""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if n >= 1 << 10 * power:
            return f"{number(n / (1 << 10 * power))} {unit}"
    return f"{int(n)} B" if n else "0"


def number(x: Optional[float]) -> str:
    """A number with at least three digits, and without an exponent in the range of measured values."""
    if x is None:
        return ""
    if x == 0 or x >= 1000:
        return f"{x:.0f}"
    digits = 0 if x >= 100 else 1 if x >= 10 else 2 if x >= 1 else 3
    text = f"{x:.{digits}f}" if x >= 0.01 else f"{x:.2g}"
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def speed_unit(fastest: float) -> Tuple[str, float]:
    """The unit for speeds up to `fastest` TFLOP/s, and the factor from TFLOP/s to it."""
    return ("TFLOP/s", 1.0) if fastest >= 1 else ("GFLOP/s", 1e3)


def ratio(x: float) -> str:
    return f"{x:.2f}" if x < 10 else f"{x:.1f}" if x < 100 else f"{x:.0f}"


def share(x: Optional[float]) -> str:
    return "" if x is None else f"{100 * x:.0f}%"
