"""One self-contained HTML file: pictures, their figures, and where they come from. It loads nothing from elsewhere."""

from __future__ import annotations

import base64
import re
from html import escape
from typing import Dict, List, Tuple

from . import text
from .picture import Picture, Table
from .ratios import summary
from .results import Point, Run
from .scene import Scene
from .style import GRID, INK, ON_DARK, PAPER, QUIET, Palette

MOST_ROWS = 5000  # rows of the table of all points, so that a report opens quickly
WIDE = 12  # tables with more columns than this have a smaller font, so that they fit into 1200 pixels

STYLE = f"""
:root {{ color-scheme: light dark;
  --paper: {PAPER}; --ink: {INK}; --quiet: {QUIET}; --line: {GRID}; --band: #f6f7f9; }}
@media (prefers-color-scheme: dark) {{ :root {{ --band: #1d2126;
  --paper: {ON_DARK[PAPER]}; --ink: {ON_DARK[INK]}; --quiet: {ON_DARK[QUIET]}; --line: {ON_DARK[GRID]}; }} }}
""" + """
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 110rem; background: var(--paper); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); } h3 { margin-bottom: 0.2rem; }
p, figcaption { color: var(--quiet); margin: 0.2rem 0 0.6rem; }
a { color: inherit; }
nav a { margin-right: 1rem; }
figure { margin: 0 0 0.8rem; } img { max-width: 100%; height: auto; }
.table { border: 1px solid var(--line); width: fit-content; max-width: 100%; margin-bottom: 1.2rem; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 0.6rem; text-align: right; }
td { white-space: nowrap; } td.words { white-space: normal; overflow-wrap: anywhere; }
figure + .table td.words:first-child { min-width: 17rem; }
th { position: sticky; top: 0; background: var(--band); font-weight: 600; vertical-align: bottom; }
td.words, th.words { text-align: left; } tr:nth-child(even) td { background: var(--band); }
.wide table { font-size: 0.75rem; } .wide th, .wide td { padding: 0.15rem 0.35rem; }
.wide td.words { white-space: nowrap; }
@media (max-width: 70rem) { .table { overflow-x: auto; } }
code { overflow-wrap: anywhere; }
"""
FIGURE = re.compile(r"[\d.]+( - [\d.]+)?( ?[A-Za-z]{1,3})?%?(/\d+)?")  # 2k, 1.5 GiB, 80%, 0.9 - 1.2, 32/8
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def on_any_paper(svg: bytes) -> bytes:
    """The picture with dark colours added for readers who prefer them."""
    drawn = svg.decode("utf-8")
    names = {colour: f"--c{n}" for n, colour in enumerate(ON_DARK)}
    drawn = re.sub("|".join(ON_DARK), lambda found: f"var({names[found.group()]})", drawn)
    light = "".join(f"{names[colour]}:{colour};" for colour in ON_DARK)
    dark = "".join(f"{names[colour]}:{other};" for colour, other in ON_DARK.items())
    style = f"<style>svg{{{light}}}@media (prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
    return re.sub(r"(<svg\b[^>]*>)", lambda found: found.group() + style, drawn, count=1).encode("utf-8")


def _table(table: Table) -> str:
    words = [not any(FIGURE.fullmatch(row[n]) for row in table.rows) for n in range(len(table.headers))]

    def row(tag: str, cells: List[str]) -> str:
        marks = (' class="words"' if word else "" for word in words)
        return "<tr>" + "".join(f"<{tag}{mark}>{escape(cell)}</{tag}>" for mark, cell in zip(marks, cells)) + "</tr>"

    body = "\n".join(row("td", cells) for cells in table.rows)
    head = row("th", table.headers)
    wide = " wide" if len(table.headers) > WIDE else ""
    return f'<div class="table{wide}"><table><thead>{head}</thead>\n<tbody>{body}</tbody></table></div>'


def _picture(picture: Picture, svg: bytes) -> str:
    data = base64.b64encode(on_any_paper(svg)).decode("ascii")
    return (f'<h3 id="{escape(picture.name)}">{escape(picture.title)}</h3>\n<figure>'
            f'<img alt="{escape(picture.title)}" src="data:image/svg+xml;base64,{data}">'
            f"<figcaption>{escape(picture.caption)}</figcaption></figure>\n{_table(picture.table)}")


def _origin(runs: List[Run]) -> str:
    rows = [[run.path, run.command, run.version, run.date, f"{run.cpu}, {run.threads} threads", run.gpu or "none",
             str(len(run.points))] for run in runs]
    return _table(Table(["file", "command", "cuflash", "date", "processor", "GPU", "points"], rows))


def _ceilings(scene: Scene) -> str:
    if not scene.ceilings:
        return "<p>No ceiling was measured.</p>"
    words = [f"{name[:-len('_tflops')]} {text.number(value)} TFLOP/s" if name.endswith("_tflops")
             else f"reading {text.number(value)} GB/s" for name, value in sorted(scene.ceilings.items())]
    return f"<p>Measured ceilings: {escape(', '.join(words))}.</p>"


def _all_points(scenes: List[Scene]) -> str:
    def cells(point: Point) -> List[str]:
        p = point.problem
        extra = "" if point.extra_bytes is None else text.size(point.extra_bytes)
        return [point.contestant, p.device, p.direction, p.dtype, str(p.batch), f"{p.heads_q}/{p.heads_k}",
                str(p.len_q), str(p.len_k), f"{p.head_dim}/{p.head_dim_v}", "yes" if p.causal else "no",
                str(p.page_size), text.number(point.ms), f"{text.number(point.ms_low)} - {text.number(point.ms_high)}",
                text.number(point.tflops), text.number(point.gbs), text.share(point.share),
                text.number(point.clock_mhz), extra]

    points = [point for scene in scenes for point in scene.points.values()]
    headers = ["contestant", "device", "direction", "type", "batch", "heads", "queries", "keys", "D", "causal", "page",
               "ms", "quartiles", "TFLOP/s", "GB/s", "of the ceiling", "MHz", "extra memory"]
    note = f"<p>The first {MOST_ROWS} of {len(points)}.</p>" if len(points) > MOST_ROWS else ""
    return note + _table(Table(headers, [cells(point) for point in points[:MOST_ROWS]]))


def report(runs: List[Run], scenes: List[Scene], pictures: Dict[str, List[Tuple[Picture, bytes]]],
           palette: Palette) -> str:
    """pictures: by the name of their scene, each as SVG."""
    parts = []
    for scene in scenes:
        drawn = pictures[scene.name]
        parts.append(f'<h2>{escape(f"{scene.device}: {scene.machine}")}</h2>\n{_ceilings(scene)}')
        links = "\n".join(f'<a href="#{escape(picture.name)}">{escape(picture.name)}</a>' for picture, _ in drawn)
        parts.append(f"<nav>{links}</nav>")
        ratios = summary(scene, palette)
        if ratios.rows:
            parts.append(f"<h3>Their time by that of cuflash; above 1 cuflash is faster</h3>\n{_table(ratios)}")
        parts += [_picture(picture, svg) for picture, svg in drawn]
    body = "\n".join(parts)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>cuflash: measured speed and memory</title><style>{STYLE}</style></head><body>
<h1>cuflash: measured speed and memory</h1>
{_origin(runs)}
{body}
<h2>All points</h2>
{_all_points(scenes)}
</body></html>
"""
