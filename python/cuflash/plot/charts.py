"""The line charts: speed, memory, decode."""

from __future__ import annotations

from functools import partial
from typing import Iterator, List, Optional, Tuple

from . import text
from .facets import BATCH, KEYS, LENGTH, QUERIES, Axis, by_axis
from .lines import LineChart, Measure, Value
from .picture import Picture
from .results import Point
from .scene import Scene
from .style import Palette

QUARTILES = "The band around a line is from the first to the third quartile of its runs."


def _by_time(point: Point, rate: Optional[float]) -> Optional[Value]:
    """A rate with its quartiles, which come from those of the time in reverse order."""
    if rate is None:
        return None
    return Value(rate, rate * point.ms / point.ms_high, rate * point.ms / point.ms_low)


def _extra(point: Point) -> Optional[Value]:
    return None if point.extra_bytes is None else Value(point.extra_bytes, point.extra_bytes, point.extra_bytes)


def _speed(factor: float, point: Point) -> Optional[Value]:
    return None if point.tflops is None else _by_time(point, factor * point.tflops)


def _ceiling(scene: Scene, name: str, unit: str, factor: float = 1.0) -> Optional[Tuple[float, str]]:
    if name not in scene.ceilings:
        return None
    value = factor * scene.ceilings[name]
    return value, f"measured ceiling, {text.number(value)} {unit}"


def speed(scene: Scene, palette: Palette) -> Iterator[Picture]:
    for (direction, dtype), points in scene.of("forward", "backward").items():
        unit, factor = text.speed_unit(max(point.tflops or 0.0 for point in points))
        measure = Measure(unit, partial(_speed, factor), ceiling=_ceiling(scene, f"{dtype}_tflops", unit, factor))
        caption = f"Useful operations in a second; higher is better. {QUARTILES}"
        for kind, axis, chosen in by_axis(points):
            yield from LineChart(f"speed-{kind}{scene.name}-{direction}-{dtype}",
                                 f"Speed, {direction}, {dtype}, {scene.words}", axis, measure, palette, caption
                                 ).pictures(chosen)


def memory(scene: Scene, palette: Palette) -> Iterator[Picture]:
    for (direction, dtype), points in scene.of("forward", "backward", "decode").items():
        measure = Measure("extra memory", _extra, text.size, in_bytes=True)
        caption = "Peak memory besides inputs and results; lower is better. The scale is logarithmic above 1 KiB."
        yield from LineChart(f"memory-{scene.name}-{direction}-{dtype}", f"Memory, {direction}, {dtype}, {scene.words}",
                             KEYS if direction == "decode" else LENGTH, measure, palette, caption
                             ).pictures(points, least_places=2 if direction == "decode" else 1)


def decode(scene: Scene, palette: Palette) -> Iterator[Picture]:
    """Charts of the decode points by keys, by batch and by queries, each if the points differ in it."""
    for (_, dtype), points in scene.of("decode").items():
        rate = Measure("GB/s", lambda point: _by_time(point, point.gbs), ceiling=_ceiling(scene, "read_gbs", "GB/s"))
        time = Measure("ms", lambda point: Value(point.ms, point.ms_low, point.ms_high), shared=False)
        read = f"Keys and values, each read once, by time; higher is better. {QUARTILES}"

        def chart(kind: str, title: str, axis: Axis, measure: Measure, caption: str) -> LineChart:
            return LineChart(f"{kind}-{scene.name}-{dtype}", f"Decode, {title}, {dtype}, {scene.words}", axis, measure,
                             palette, caption)

        by_keys = chart("decode-keys", "bandwidth by keys", KEYS, rate, read)
        pictures: List[Picture] = [
            *by_keys.pictures(points, 2),
            *chart("decode-batch", "bandwidth by batch", BATCH, rate, read).pictures(points, 2),
            *chart("decode-queries", "time by queries", QUERIES, time,
                   f"A call's time; flat as long as reading bounds it. {QUARTILES}").pictures(points, 2),
        ]
        yield from pictures or by_keys.pictures(points)
