"""Pictures of lines: a panel for each kind of problem, a line for each contestant."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from . import text
from .facets import Axis, Facet, facets_of, rows_of
from .picture import Picture, Table
from .results import Point
from .style import GRID, PAPER, QUIET, Palette, legend, matplotlib, set_title

ROWS_OF_PICTURE = 5
PANEL_WIDTH, PANEL_HEIGHT, LABEL_WIDTH = 2.9, 2.35, 1.2
MOST_TICKS = 7
LABEL_GAP = 0.085  # share of a panel's height


class Value(NamedTuple):
    """The drawn value of a point, with its quartiles."""

    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Measure:
    """The quantity that a chart draws by its axis."""

    label: str
    value: Callable[[Point], Optional[Value]]
    words: Callable[[float], str] = text.number
    in_bytes: bool = False
    shared: bool = True  # whether all panels have the same scale, so that they can be compared
    ceiling: Optional[Tuple[float, str]] = None  # a line that no value should exceed, and its label


@dataclass(frozen=True)
class LineChart:
    """A chart of one or more pictures, as many as its panels need."""

    name: str
    title: str
    axis: Axis
    measure: Measure
    palette: Palette
    caption: str = ""

    def pictures(self, points: List[Point], least_places: int = 1) -> Iterator[Picture]:
        """The pictures of these points, without panels that have fewer than least_places positions on the axis."""
        drawn = [point for point in points if self.measure.value(point) is not None]
        facets, common = facets_of(drawn, self.axis)
        facets = [f for f in facets if len({self.axis.value(p) for p in f.problems()}) >= least_places]
        rows = rows_of(facets)
        title = f"{self.title}: {common}" if common else self.title
        for first in range(0, len(rows), ROWS_OF_PICTURE):
            part = rows[first:first + ROWS_OF_PICTURE]
            page = f"-{first // ROWS_OF_PICTURE + 1}" if len(rows) > ROWS_OF_PICTURE else ""
            yield Picture(self.name + page, title, self.caption, self.table(part), partial(self.paint, part, title))

    def value(self, point: Point) -> Value:
        """The value of a point that is in a panel; points without a value are in none."""
        value = self.measure.value(point)
        assert value is not None
        return value

    def table(self, rows: List[List[Optional[Facet]]]) -> Table:
        facets = [facet for row in rows for facet in row if facet]
        contestants = self.palette.sorted(name for facet in facets for name in facet.points)
        lines = []
        for facet in facets:
            cells: Dict[int, Dict[str, str]] = {}
            for name, points in facet.points.items():
                for point in points:
                    words = self.measure.words(self.value(point).y)
                    cells.setdefault(self.axis.value(point.problem), {})[name] = words
            lines += [[facet.title, text.length(x), *(cells[x].get(name, "") for name in contestants)]
                      for x in sorted(cells)]
        headers = ["", self.axis.label, *(f"{name}, {self.measure.label}" for name in contestants)]
        if not any(line[0] for line in lines):
            headers, lines = headers[1:], [line[1:] for line in lines]
        return Table(headers, lines)

    def paint(self, rows: List[List[Optional[Facet]]], title: str) -> Any:
        columns = max(len(row) for row in rows)
        width = PANEL_WIDTH * columns + LABEL_WIDTH
        figure = matplotlib().figure.Figure(figsize=(width, PANEL_HEIGHT * len(rows) + 0.7))
        set_title(figure, title)
        grid = figure.subplots(len(rows), columns, squeeze=False, sharey=self.measure.shared)
        everything = [facet for row in rows for facet in row if facet]
        tops = {id(facet): max(self.value(p).high for points in facet.points.values() for p in points)
                for facet in everything}
        if self.measure.shared:
            tops = dict.fromkeys(tops, max(tops.values()))
        direct = all(_names_all(row) for row in rows)
        for n, row in enumerate(rows):
            for m in range(columns):
                facet = row[m] if m < len(row) else None
                below = n + 1 < len(rows) and m < len(rows[n + 1]) and rows[n + 1][m] is not None
                self._panel(grid[n][m], facet, tops.get(id(facet), 0.0), left=m == 0, bottom=not below)
            if direct and row[-1] is not None:
                self._labels(grid[n][len(row) - 1], row[-1])
        if not direct:
            legend(figure, self.palette, self.palette.sorted(name for facet in everything for name in facet.points))
        return figure

    def _panel(self, axes: Any, facet: Optional[Facet], top: float, left: bool, bottom: bool) -> None:
        if facet is None:
            axes.set_visible(False)
            return
        for name in reversed(self.palette.sorted(facet.points)):  # cuflash lies on top
            places = [self.axis.value(point.problem) for point in facet.points[name]]
            values = [self.value(point) for point in facet.points[name]]
            color = self.palette.color(name)
            axes.fill_between(places, [v.low for v in values], [v.high for v in values], color=color, alpha=0.18, lw=0)
            axes.plot(places, [v.y for v in values], color=color, marker=self.palette.marker(name),
                      markeredgecolor=PAPER, markeredgewidth=0.7, clip_on=False, zorder=3)
        axes.set_title(facet.title, loc="left")
        self._x_axis(axes, sorted({self.axis.value(p) for p in facet.problems()}))
        self._y_axis(axes, top, words=left)
        axes.tick_params(labelleft=left or not self.measure.shared)
        axes.set_ylabel(self.measure.label if left else "")
        axes.set_xlabel(self.axis.label if bottom else "")

    def _x_axis(self, axes: Any, places: List[int]) -> None:
        ticker = matplotlib().ticker
        axes.set_xscale("log", base=2)
        step = -(-len(places) // MOST_TICKS)
        ticks = places[::-1][::step][::-1]
        axes.xaxis.set_major_locator(ticker.FixedLocator(ticks))
        axes.xaxis.set_major_formatter(ticker.FixedFormatter([text.length(x) for x in ticks]))
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.set_xlim(places[0] / 1.25, places[-1] * 1.25)

    def _y_axis(self, axes: Any, top: float, words: bool) -> None:
        ticker = matplotlib().ticker
        ceiling = self.measure.ceiling
        if ceiling:
            axes.axhline(ceiling[0], color=QUIET, lw=1, ls=(0, (4, 3)))
            axes.annotate(ceiling[1] if words else "", (0, ceiling[0]), xycoords=("axes fraction", "data"),
                          xytext=(2, 3), textcoords="offset points", color=QUIET, fontsize=7.5)
        if not self.measure.in_bytes:
            axes.set_ylim(0, 1.08 * max(top, ceiling[0] if ceiling else 0))
            axes.yaxis.set_major_locator(ticker.MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
            return
        # Logarithmic, with room below for contestants that need no memory at all.
        axes.set_yscale("symlog", base=2, linthresh=1024, linscale=1)
        powers = range(10, max(12, int(top).bit_length()) + 1)
        step = -(-len(powers) // 6)
        ticks = [0, *(2**power for power in powers[::step])]
        axes.yaxis.set_major_locator(ticker.FixedLocator(ticks))
        axes.yaxis.set_major_formatter(ticker.FixedFormatter([text.size(tick) for tick in ticks]))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
        axes.set_ylim(-150, 2.0 * max(top, 4096))

    def _labels(self, axes: Any, facet: Facet) -> None:
        """Puts names at the right ends of lines, moved apart if lines end close to each other."""
        to_axes = axes.transData + axes.transAxes.inverted()
        ends = []
        for name in self.palette.sorted(facet.points):
            point = facet.points[name][-1]
            place = (self.axis.value(point.problem), self.value(point).y)
            ends.append((float(to_axes.transform(place)[1]), place, name))
        ends.sort(key=lambda end: end[0])
        heights = spread([height for height, _, _ in ends])
        for (height, place, name), moved in zip(ends, heights):
            axes.annotate(name, place, xycoords="data", xytext=(1.06, moved), textcoords="axes fraction",
                          color=self.palette.color(name), va="center", fontweight="bold" if name == "cuflash" else None,
                          annotation_clip=False,
                          arrowprops={"arrowstyle": "-", "color": GRID, "lw": 0.8, "shrinkA": 1, "shrinkB": 4})


def _names_all(row: List[Optional[Facet]]) -> bool:
    """Whether the last panel of the row has every contestant, so that its labels name all lines."""
    return row[-1] is not None and all(set(facet.points) <= set(row[-1].points) for facet in row if facet)


def spread(heights: List[float]) -> List[float]:
    """Ascending heights, moved as little as needed to be LABEL_GAP apart."""
    groups: List[List[float]] = []  # labels that are moved together, by their requested heights
    for height in heights:
        groups.append([height])
        while len(groups) > 1 and _lowest(groups[-1]) < _lowest(groups[-2]) + LABEL_GAP * len(groups[-2]):
            groups[-2:] = [groups[-2] + groups[-1]]
    return [_lowest(group) + LABEL_GAP * n for group in groups for n in range(len(group))]


def _lowest(group: List[float]) -> float:
    """The height of the first label of a group that is centred on the heights its members asked for."""
    return sum(group) / len(group) - LABEL_GAP * (len(group) - 1) / 2
