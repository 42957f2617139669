"""Heat maps of the speed of cuflash relative to each other contestant."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

from . import text
from .facets import KEYS, Axis, Facet, by_axis, facets_of
from .picture import Picture, Table
from .problem import Problem
from .results import Point
from .scene import OURS, Scene
from .style import DARK_ON_COLOUR, DIVERGING, LIGHT_ON_COLOUR, PAPER, Palette, matplotlib, set_title

ROWS_OF_PICTURE = 32
STRONGEST = 2.0  # the ratio with the strongest colour, in all pictures


class Map(NamedTuple):
    """One contestant's ratios, by row and position on the axis."""

    contestant: str
    cells: Dict[Tuple[int, int], float]


def geometric_mean(ratios: List[float]) -> float:
    return math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios))


def summary(scene: Scene, palette: Palette) -> Table:
    """A table with a line for each type, direction and contestant."""
    lines = []
    for (direction, dtype), points in scene.of("forward", "backward", "decode").items():
        for name in palette.sorted(point.contestant for point in points if point.contestant != OURS):
            of_name = {problem: ratio for (other, problem), ratio in scene.ratios.items()
                       if other == name and (problem.direction, problem.dtype) == (direction, dtype)}
            if of_name:
                worst = min(of_name, key=lambda problem: of_name[problem])
                mean = geometric_mean([*of_name.values()])
                lines.append([dtype, direction, name, str(len(of_name)), text.ratio(mean), text.ratio(of_name[worst]),
                              where(worst)])
    return Table(["type", "direction", "against", "points", "geometric mean", "smallest", "at"], lines)


def where(p: Problem) -> str:
    lengths = text.length(p.len_k) if p.len_q == p.len_k else f"{text.length(p.len_q)} x {text.length(p.len_k)}"
    mask = ", causal" if p.causal else ""
    return f"batch {p.batch}, {p.heads_q}/{p.heads_k} heads, {lengths}, D {p.head_dim}{mask}"


def ratios(scene: Scene, palette: Palette) -> Iterator[Picture]:
    for (direction, dtype), points in scene.of("forward", "backward", "decode").items():
        compared = {problem for _, problem in scene.ratios}
        ours = [point for point in points if point.contestant == OURS and point.problem in compared]
        kinds = [("", KEYS, ours)] if direction == "decode" else by_axis(ours)
        for kind, axis, chosen in kinds:
            title = f"Speed of cuflash to that of others, {direction}, {dtype}, {scene.words}"
            yield from _pictures(scene, palette, f"ratio-{kind}{scene.name}-{direction}-{dtype}", title, axis, chosen)


def _pictures(scene: Scene, palette: Palette, name: str, title: str, axis: Axis,
              ours: List[Point]) -> Iterator[Picture]:
    facets, common = facets_of(ours, axis)
    title += f": {common}" if common else ""
    for first in range(0, len(facets), ROWS_OF_PICTURE):
        part = facets[first:first + ROWS_OF_PICTURE]
        maps = _maps(scene, palette, part, axis)
        page = f"-{first // ROWS_OF_PICTURE + 1}" if len(facets) > ROWS_OF_PICTURE else ""
        yield Picture(f"{name}{page}", title,
                      "Their time by that of cuflash, of the same run: above 1 cuflash is faster.", _table(part, maps, axis), partial(_paint, part, maps, axis, title))


def _maps(scene: Scene, palette: Palette, facets: List[Facet], axis: Axis) -> List[Map]:
    found: Dict[str, Dict[Tuple[int, int], float]] = {}
    rows: Dict[Problem, int] = {p: n for n, facet in enumerate(facets) for p in facet.problems()}
    for (name, problem), ratio in scene.ratios.items():
        if problem in rows:
            found.setdefault(name, {})[rows[problem], axis.value(problem)] = ratio
    return [Map(name, found[name]) for name in palette.sorted(found)]


def _places(maps: List[Map]) -> List[int]:
    return sorted({place for map in maps for _, place in map.cells})


def _table(facets: List[Facet], maps: List[Map], axis: Axis) -> Table:
    lines = [[facets[row].title, text.length(place),
              *(text.ratio(map.cells[row, place]) if (row, place) in map.cells else "" for map in maps)]
             for row in range(len(facets)) for place in _places(maps)
             if any((row, place) in map.cells for map in maps)]
    return Table(["", axis.label, *(f"against {map.contestant}" for map in maps)], lines)


def _paint(facets: List[Facet], maps: List[Map], axis: Axis, title: str) -> Any:
    module = matplotlib()
    places = _places(maps)
    width = max(2.2, 0.5 * len(places) + 0.3)
    names = max(len(facet.title) for facet in facets)
    figure = module.figure.Figure(figsize=(0.075 * names + width * len(maps) + 1.4, 0.27 * len(facets) + 1.7))
    set_title(figure, title)
    grid = figure.subplots(1, len(maps), squeeze=False, sharey=True)[0]
    limit = math.log2(STRONGEST)
    norm = module.colors.Normalize(-limit, limit, clip=True)
    full = module.colormaps[DIVERGING]
    colours = module.colors.ListedColormap([full(0.1 + 0.8 * n / 255) for n in range(256)])  # without its near black
    for axes, map in zip(grid, maps):
        _cells(axes, map, places, colours, norm)
        axes.set_xlim(0, len(places)), axes.set_ylim(len(facets), 0)
        mean = text.ratio(geometric_mean([*map.cells.values()]))
        axes.set_title(f"against {map.contestant}\ngeometric mean {mean}", loc="left")
        axes.set_xticks([n + 0.5 for n in range(len(places))], [text.length(place) for place in places])
        axes.set_yticks([n + 0.5 for n in range(len(facets))], [facet.title for facet in facets])
        axes.set_xlabel(axis.label)
        axes.tick_params(length=0), axes.grid(False)
        for side in axes.spines.values():
            side.set_visible(False)
    ticks = [0.5, 0.7, 1.0, 1.4, 2.0]
    bar = figure.colorbar(module.cm.ScalarMappable(norm, colours), ax=list(grid), fraction=0.05, pad=0.02, aspect=18,
                          extend="both", ticks=[math.log2(tick) for tick in ticks])
    bar.ax.set_yticklabels([f"{tick:g}x" for tick in ticks])
    bar.outline.set_visible(False)
    return figure


def _cells(axes: Any, map: Map, places: List[int], colours: Any, norm: Any) -> None:
    patches = matplotlib().patches
    for (row, place), ratio in map.cells.items():
        column, colour = places.index(place), colours(norm(math.log2(ratio)))
        axes.add_patch(patches.Rectangle((column, row), 1, 1, facecolor=colour, edgecolor=PAPER, lw=1.2))
        bright = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] > 0.55
        axes.text(column + 0.5, row + 0.52, text.ratio(ratio), ha="center", va="center", fontsize=7.5,
                  color=DARK_ON_COLOUR if bright else LIGHT_ON_COLOUR)


