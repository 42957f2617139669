"""Draws what `bench/decode_cuda.py --queries ... --json FILE` has measured: time of a step against the number of queries.

    python bench/plot_queries.py docs/data/h200_decode_queries.json -o docs/images/h200_decode_queries.svg
"""

import argparse
import json

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "cuflash"  # the same file every time
from matplotlib import pyplot  # noqa: E402

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("-o", "--output", required=True)
    arguments = parser.parse_args()
    with open(arguments.file, encoding="utf-8") as file:
        rows = json.load(file)
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for colour, (batch, length) in zip(COLOURS, sorted({(row["batch"], row["length"]) for row in rows})):
        points = sorted((r["queries"], r["ms"] * 1000) for r in rows if (r["batch"], r["length"]) == (batch, length))
        axes.plot(*zip(*points), marker="o", markersize=4, color=colour)
        axes.annotate(f"B = {batch}, {length} keys", points[-1], xytext=(6, 0), textcoords="offset points", color=colour,
                      va="center")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel("queries of each sequence")
    axes.set_ylabel("time of a step, µs")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.9")
    figure.subplots_adjust(left=0.1, right=0.78, bottom=0.13, top=0.96)
    figure.savefig(arguments.output, metadata={"Date": None} if arguments.output.endswith(".svg") else None)


if __name__ == "__main__":
    main()
