"""The charts of docs/benchmarks.md and README.md, drawn from docs/data with the looks of cuflash.plot."""

import importlib
import importlib.util
import io
import sys
from typing import Callable, NamedTuple, Tuple

import benchmark_data as data
from benchmark_data import NAMES, ROOT

IMAGES = ROOT / "docs" / "images"


class Chart(NamedTuple):
    name: str
    sources: Tuple[str, ...]  # files of docs/data
    draw: Callable


def charts():
    peers = data.dense().name
    decode = data.DENSE[0] if data.has_peers() else "h200_decode_step.json"
    return [Chart("h200_peers.svg", (peers,), speed), Chart("h200_decode.svg", (decode,), decode_bars),
            Chart("h200_decode_queries.svg", ("h200_decode_queries.json",), queries),
            *([Chart("h200_world.svg", (data.WORLD,), world)] if data.has_world() else []),
            *([Chart("h200_few_queries.svg", (data.FEW_QUERIES,), few_queries)] if data.has_few_queries() else [])]


def mark_of(chart):
    """The last line of a chart: a comment with the digest of its data."""
    return f"<!-- data: {data.digest(*chart.sources)} -->"


def looks():
    """Imports cuflash.plot as a package of its own, because `import cuflash` needs the compiled module."""
    folder = ROOT / "python" / "cuflash" / "plot"
    spec = importlib.util.spec_from_file_location("plot", folder / "__init__.py",
                                                  submodule_search_locations=[str(folder)])
    sys.modules["plot"] = importlib.util.module_from_spec(spec)
    return importlib.import_module("plot.style")


def length(n):
    return f"{n // 1024}k" if n >= 1024 else str(n)


def speed(style, figure):
    """Draws TFLOP/s by length, causal: a row for each direction, a panel for each head size."""
    source = data.dense()
    peers = [name for name in ("cuflash", *source.peers("forward", "backward")) if name != "torch-math"]
    points = [(p, by) for p, by in source.group("forward", "backward") if p["causal"]]
    dims = sorted({p["head_dim"] for p, _ in points})
    figure.set_size_inches(9.2, 5.2)
    grid = figure.subplots(2, len(dims), sharex=True, sharey=True, squeeze=False)
    palette = style.Palette(peers)
    for row, direction in zip(grid, ("forward", "backward")):
        for axes, dim in zip(row, dims):
            chosen = {p["len_k"]: by for p, by in points if (p["direction"], p["head_dim"]) == (direction, dim)}
            chosen = sorted(chosen.items())
            for name in reversed(peers):  # cuflash on top
                line = [(n, by[name]["tflops"]) for n, by in chosen if name in by]
                axes.plot(*zip(*line), color=palette.color(name), marker=palette.marker(name),
                          markeredgecolor=style.PAPER, markeredgewidth=0.7, lw=2.4 if name == "cuflash" else 1.4)
            axes.set_xscale("log", base=2)
            axes.set_xticks([n for n, _ in chosen], [length(n) for n, _ in chosen])
            axes.minorticks_off()
            axes.set_title(f"{direction}, D = {dim}", loc="left")
        row[0].set_ylabel("TFLOP/s")
    for axes in grid[-1]:
        axes.set_xlabel("length")
    grid[0][0].set_ylim(0, 1.06 * max(by[name]["tflops"] for _, by in points for name in peers if name in by))
    style.set_title(figure, f"{source.machine}, bf16, causal, 16k tokens in a batch; higher is better")
    handles = [style.matplotlib().lines.Line2D([], [], color=palette.color(n), marker=palette.marker(n)) for n in peers]
    figure.legend(handles, [NAMES[n] for n in peers], loc="outside lower center", ncols=len(peers))


def decode_bars(style, figure):
    """Draws GB/s of a decode step over a contiguous cache."""
    from benchmark_tables import decode_peers, decode_rows
    _, steps = decode_rows()
    names = ["contiguous", "page_16", *decode_peers(steps)]
    palette = style.Palette(["cuflash", *names[2:]])
    figure.set_size_inches(9.2, 3.2)
    axes = figure.subplots()
    width = 0.8 / len(names)
    for n, name in enumerate(names):
        colour = palette.color(name) if name in NAMES else palette.color("cuflash")
        label = {"contiguous": "cuflash", "page_16": "cuflash, pages of 16"}.get(name) or NAMES[name]
        values = [row.get(name, 0.0) for _, _, row in steps]
        places = [i + (n - (len(names) - 1) / 2) * width for i in range(len(steps))]
        axes.bar(places, values, width * 0.92, color=colour, alpha=0.5 if name == "page_16" else 1.0,
                 label=label)
    axes.set_xticks(range(len(steps)), [f"batch {batch}, {length(keys)} keys" for batch, keys, _ in steps])
    axes.set_ylabel("GB/s of keys and values")
    axes.grid(axis="x", visible=False)
    style.set_title(figure, "A decode step on an H200: bf16, 32 heads over 8, D = 128, one query; higher is better")
    figure.legend(loc="outside lower center", ncols=len(names))


def queries(style, figure):
    """Draws the time of a decode step by the number of queries, measured by bench/decode_cuda.py --queries."""
    import json
    rows = json.loads((data.DATA / "h200_decode_queries.json").read_text())
    figure.set_size_inches(7.2, 3.6)
    axes = figure.subplots()
    for colour, batch in zip(("#0072b2", "#d55e00"), sorted({row["batch"] for row in rows})):
        points = sorted((row["queries"], row["ms"] * 1000) for row in rows if row["batch"] == batch)
        axes.plot(*zip(*points), marker="o", color=colour, label=f"batch {batch}")
    axes.set_xscale("log", base=2), axes.set_yscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}"), axes.yaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel("queries of each sequence"), axes.set_ylabel("us")
    axes.legend()
    style.set_title(figure, "Time of a decode step over 8k keys by its number of queries; lower is better")


def world(style, figure, source=None):
    """Draws the ratio to the fastest peer for each case of bench/world.py, worst first; dots are the ratio to plain."""
    source = source or data.Bench(data.WORLD)
    found = [each for each in data.standings(source) if each.ratio is not None or each.to_plain is not None]
    panels = [("forward and decode", [each for each in found if each.direction != "backward"]),
              ("backward", [each for each in found if each.direction == "backward"])]
    panels = [(title, chosen) for title, chosen in panels if chosen]
    figure.set_size_inches(11, 1.6 + 0.19 * max((len(chosen) for _, chosen in panels), default=1))
    palette = style.Palette(["cuflash", *(name for name in NAMES if any(each.peer == name for each in found))])
    for axes, (title, chosen) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        places = range(len(chosen))
        axes.barh(places, [each.ratio or 0 for each in chosen], 0.7,
                  color=[palette.color(each.peer) if each.peer else style.QUIET for each in chosen])
        dots = [(each.to_plain, place) for place, each in zip(places, chosen) if each.to_plain is not None]
        if dots:
            axes.plot(*zip(*dots), linestyle="", marker="o", markersize=3, color=style.INK)
        axes.axvline(1, color=style.INK, lw=1)
        axes.set_yticks(places, [each.name for each in chosen], fontsize=7)
        axes.set_ylim(len(chosen) - 0.4, -0.6)
        axes.set_xlim(0, 2)
        axes.grid(axis="y", visible=False)
        axes.set_title(title, loc="left")
        axes.set_xlabel("speed relative to the best peer")
    shown = [name for name in NAMES if name != "cuflash" and any(each.peer == name for each in found)]
    handles = [style.matplotlib().lines.Line2D([], [], color=palette.color(name), lw=5) for name in shown]
    handles.append(style.matplotlib().lines.Line2D([], [], color=style.INK, marker="o", markersize=3, linestyle=""))
    figure.legend(handles, [*(f"best peer: {NAMES[name]}" for name in shown), "relative to cuflash without options"],
                  loc="outside lower center", ncols=4)
    style.set_title(figure, f"{source.machine}: cuflash and the best peer, worst first; higher is better")


def draw_world(source, path):
    """Draws the chart of bench/world.py --chart."""
    style = looks()
    path.write_text(svg_of(style, lambda style, figure: world(style, figure, source)))


def few_queries(style, figure, source=None):
    """Draws time by the number of queries over many keys, measured by bench/few_queries.py: a panel for each grouping
    of heads."""
    source = source or data.Bench(data.FEW_QUERIES)
    points = list(source.points.items())
    names = ["cuflash", *(name for name in NAMES if name != "cuflash" and any(name in by for _, by in points))]
    groupings = sorted({(p["heads_q"], p["heads_k"]) for p, _ in points})
    figure.set_size_inches(9.2, 3.8)
    palette = style.Palette(names)
    row = figure.subplots(1, len(groupings), sharey=True, squeeze=False)[0]
    for axes, heads in zip(row, groupings):
        chosen = sorted(((p["len_q"], by) for p, by in points if (p["heads_q"], p["heads_k"]) == heads),
                        key=lambda point: point[0])
        for name in reversed(names):  # cuflash on top
            line = [(n, 1e3 * by[name]["ms"]) for n, by in chosen if name in by]
            if line:
                axes.plot(*zip(*line), color=palette.color(name), marker=palette.marker(name), markersize=4,
                          lw=2.4 if name == "cuflash" else 1.4)
        axes.set_xscale("log", base=2), axes.set_yscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}"), axes.yaxis.set_major_formatter("{x:.0f}")
        axes.minorticks_off()
        axes.set_title(f"{heads[0]} heads over {heads[1]}", loc="left")
        axes.set_xlabel("queries")
    row[0].set_ylabel("us")
    keys = max((p["len_k"] for p, _ in points), default=0)
    style.set_title(figure, f"{source.machine}: forward over {length(keys)} keys by the number of queries; lower is better")
    handles = [style.matplotlib().lines.Line2D([], [], color=palette.color(n), marker=palette.marker(n)) for n in names]
    figure.legend(handles, [NAMES[n] for n in names], loc="outside lower center", ncols=len(names))


def draw_few_queries(source, path):
    """Draws the chart of bench/few_queries.py --chart."""
    style = looks()
    path.write_text(svg_of(style, lambda style, figure: few_queries(style, figure, source)))


def svg_of(style, draw):
    with style.in_style():
        figure = style.matplotlib().figure.Figure()
        draw(style, figure)
        stream = io.BytesIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    # matplotlib leaves spaces at the ends of lines of paths.
    return "\n".join(line.rstrip() for line in stream.getvalue().decode().split("\n")).rstrip() + "\n"


def draw_all(redraw):
    wanted = [chart for chart in charts() if redraw or not (IMAGES / chart.name).exists() or
              mark_of(chart) not in (IMAGES / chart.name).read_text()]
    if not wanted:
        return
    style = looks()
    try:
        style.matplotlib()
    except style.MissingMatplotlib as error:
        sys.exit(f"benchmark_tables: {', '.join(chart.name for chart in wanted)} must be redrawn: {error}")
    for chart in wanted:
        (IMAGES / chart.name).write_text(svg_of(style, chart.draw) + f"{mark_of(chart)}\n")
        print(f"docs/images/{chart.name}: redrawn")
