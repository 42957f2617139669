"""Curves as an SVG file, without a plotting library: panels above each other that share the horizontal axis."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import List, Sequence, Tuple

WIDTH, LEFT, RIGHT, TOP, GAP, BOTTOM = 720, 70, 20, 40, 34, 46


@dataclass
class Curve:
    label: str
    x: Sequence[float]
    y: Sequence[float]
    color: str
    thickness: float


@dataclass
class Panel:
    label: str
    curves: List[Curve]
    height: int
    logarithmic: bool = False


class _Scale:
    """Maps values to pixels, and chooses round values for the ticks."""

    def __init__(self, low: float, high: float, pixels: Tuple[float, float], logarithmic: bool = False) -> None:
        self.logarithmic, self.pixels = logarithmic, pixels
        if logarithmic:
            low, high = 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high) + 1e-9)
        self.low, self.high = low, high if high > low else low + 1

    def __call__(self, value: float) -> float:
        low, high = (math.log10(self.low), math.log10(self.high)) if self.logarithmic else (self.low, self.high)
        share = ((math.log10(value) if self.logarithmic else value) - low) / (high - low)
        return self.pixels[0] + share * (self.pixels[1] - self.pixels[0])

    def ticks(self) -> List[float]:
        if self.logarithmic:
            exponents = range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)
            return [10.0 ** e for e in exponents if e % (1 + len(exponents) // 6) == 0]
        raw = (self.high - self.low) / 5
        step = 10.0 ** math.floor(math.log10(raw))
        step *= next(factor for factor in (1, 2, 5, 10) if factor * step >= raw)
        first = math.ceil(self.low / step)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def write_svg(path: str, title: str, panels: List[Panel], x_label: str) -> None:
    """Writes the file, and creates its folder if needed."""
    height = TOP + sum(panel.height + GAP for panel in panels) - GAP + BOTTOM
    every_x = [x for panel in panels for curve in panel.curves for x in curve.x]
    across = _Scale(min(every_x), max(every_x), (LEFT, WIDTH - RIGHT))
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
             f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
             _text(WIDTH / 2, 22, title, "middle", 15)]
    top = TOP
    for panel in panels:
        parts += _panel(panel, top, across)
        top += panel.height + GAP
    bottom = top - GAP
    parts += [_text(across(tick), bottom + 18, f"{tick:g}", "middle") for tick in across.ticks()]
    parts += [_text((LEFT + WIDTH - RIGHT) / 2, bottom + 36, x_label, "middle"), "</svg>"]
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(parts) + "\n")


def _panel(panel: Panel, top: float, across: _Scale) -> List[str]:
    bottom = top + panel.height
    every_y = [y for curve in panel.curves for y in curve.y]
    up = _Scale(min(every_y), max(every_y), (bottom, top), panel.logarithmic)
    parts = [f'<rect x="{LEFT}" y="{top}" width="{WIDTH - LEFT - RIGHT}" height="{panel.height}" fill="none" '
             'stroke="#888"/>']
    for tick in up.ticks():
        y = up(tick)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{tick:g}", "end"))
    for n, curve in enumerate(panel.curves):
        points = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in zip(curve.x, curve.y))
        stroke = f'stroke="{curve.color}" stroke-width="{curve.thickness}"'
        parts.append(f'<polyline points="{points}" fill="none" {stroke}/>')
        y = top + 18 + 18 * n
        parts.append(f'<line x1="{WIDTH - 250}" x2="{WIDTH - 222}" y1="{y - 4}" y2="{y - 4}" {stroke}/>')
        parts.append(_text(WIDTH - 214, y, curve.label, "start"))
    middle = (top + bottom) / 2
    parts.append(f'<g transform="rotate(-90 18 {middle})">{_text(18, middle, panel.label, "middle")}</g>')
    return parts


def _text(x: float, y: float, text: str, anchor: str, size: int = 12) -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escaped}</text>'
