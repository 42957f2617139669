"""Rooflines: the limits that memory and arithmetic of a machine set, and the measured calls below them."""

from __future__ import annotations

from functools import partial
from typing import Any, Iterator, List, Optional, Tuple

from . import text
from .picture import Picture, Table
from .ratios import where
from .results import DIRECTIONS, Point
from .scene import Scene
from .style import PAPER, QUIET, Palette, legend, matplotlib, set_title

SCALE = 1e-3  # TFLOP/s per GB/s times FLOP/byte
CAPTION = ("Operations by the bytes of inputs and results, each moved once: what a perfect cache would leave. "
           "Lines are ceilings measured in the same runs.")


def speed_of(point: Point) -> float:
    """TFLOP/s of a point; for a decode step, computed from its operations and time."""
    return point.tflops if point.tflops is not None else point.problem.flops / point.ms * 1e-9


def rooflines(scene: Scene, palette: Palette) -> Iterator[Picture]:
    bandwidth = scene.ceilings.get("read_gbs")
    for dtype in sorted({problem.dtype for _, problem in scene.points}):
        peak = scene.ceilings.get(f"{dtype}_tflops")
        if bandwidth is None and peak is None:
            continue
        points = [point for point in scene.points.values() if point.problem.dtype == dtype]
        title = f"Roofline, {dtype}, {scene.words}"
        yield Picture(f"roofline-{scene.name}-{dtype}", title, CAPTION, _table(points, palette),
                      partial(_paint, points, bandwidth, peak, palette, title))


def _table(points: List[Point], palette: Palette) -> Table:
    points = sorted(points, key=lambda p: (palette.order.index(p.contestant), p.problem.direction, p.problem.intensity))
    return Table(["contestant", "direction", "problem", "FLOP/byte", "TFLOP/s"],
                 [[p.contestant, p.problem.direction, where(p.problem), text.number(p.problem.intensity),
                   text.number(speed_of(p))] for p in points])


def _roof(x: float, bandwidth: Optional[float], peak: Optional[float]) -> float:
    slope = None if bandwidth is None else x * bandwidth * SCALE
    return min(y for y in (slope, peak) if y is not None)


def _limits(points: List[Point], bandwidth: Optional[float], peak: Optional[float]) -> Tuple[float, ...]:
    """The limits of the axes (left, right, low, high), around the points and the corner of the roof."""
    xs, ys = [p.problem.intensity for p in points], [speed_of(p) for p in points]
    left, right = min(xs) / 2, max(xs) * 2
    if bandwidth is not None and peak is not None:
        ridge = peak / bandwidth / SCALE
        left, right = min(left, ridge / 4), max(right, ridge * 4)
    return left, right, min(ys) / 2, 2 * max(max(ys), _roof(right, bandwidth, peak))


def _roof_lines(axes: Any, left: float, right: float, low: float, bandwidth: Optional[float], peak: Optional[float],
                words: bool) -> None:
    ridge = peak / bandwidth / SCALE if bandwidth is not None and peak is not None else right
    corners = sorted({left, ridge, right})
    axes.plot(corners, [_roof(x, bandwidth, peak) for x in corners], color=QUIET, lw=1.4, zorder=2)
    look = {"textcoords": "offset points", "color": QUIET, "fontsize": 8, "ha": "right"}
    if words and peak is not None:
        axes.annotate(f"arithmetic, {text.number(peak)} TFLOP/s", (right, peak), xytext=(-2, 4), **look)
    if words and bandwidth is not None:
        middle = (max(left, low / bandwidth / SCALE) * ridge) ** 0.5
        place = (middle, _roof(middle, bandwidth, peak))
        axes.annotate(f"{text.number(bandwidth)} GB/s", place, xytext=(-5, 5), **look)


def _paint(points: List[Point], bandwidth: Optional[float], peak: Optional[float], palette: Palette, title: str) -> Any:
    module = matplotlib()
    directions = [name for name in DIRECTIONS if any(p.problem.direction == name for p in points)]
    contestants = palette.sorted(p.contestant for p in points)
    figure = module.figure.Figure(figsize=(3.3 * len(directions) + 1.9, 3.8))
    set_title(figure, title)
    panels = figure.subplots(1, len(directions), squeeze=False, sharex=True, sharey=True)[0]
    left, right, low, high = _limits(points, bandwidth, peak)
    for axes, direction in zip(panels, directions):
        axes.set_xscale("log"), axes.set_yscale("log")
        axes.set_xlim(left, right), axes.set_ylim(low, high)
        _roof_lines(axes, left, right, low, bandwidth, peak, words=axes is panels[0])
        for name in reversed(contestants):  # cuflash lies on top
            mine = [p for p in points if p.contestant == name and p.problem.direction == direction]
            xs, ys = [p.problem.intensity for p in mine], [speed_of(p) for p in mine]
            axes.plot(xs, ys, ls="", color=palette.color(name), marker=palette.marker(name), markeredgecolor=PAPER,
                      markeredgewidth=0.6, alpha=0.85, zorder=3)
        axes.set_title(direction, loc="left")
        axes.set_xlabel("intensity, FLOP/byte")
        for each in (axes.xaxis, axes.yaxis):
            each.set_major_formatter(module.ticker.FuncFormatter(lambda x, _: text.number(x)))
            each.set_minor_formatter(module.ticker.NullFormatter())
    panels[0].set_ylabel("TFLOP/s")
    legend(figure, palette, contestants)
    return figure
