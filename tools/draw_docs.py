#!/usr/bin/env python3
"""Draws the pictures of docs/algorithm.md: tools/draw_docs.py --build build/release. Needs matplotlib and NumPy.

  docs/images/tiling.svg   which tiles of the score matrix are visited; the library counts them, and what is drawn must
                           agree with its counts
  docs/images/hopper.svg   the schedule of the forward kernel for Hopper, simulated with the tiles, stages and
                           warpgroups that `cuflash explain` prints
"""

import argparse
import ctypes
import importlib.util
import io
import itertools
import os
import re
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
sys.path.append(str(ROOT / "bench"))
import cuflash_c as abi  # noqa: E402


def load_looks():
    """Imports cuflash.plot as a package of its own, because `import cuflash` needs the compiled module."""
    folder = ROOT / "python" / "cuflash" / "plot"
    spec = importlib.util.spec_from_file_location("plot", folder / "__init__.py",
                                                  submodule_search_locations=[str(folder)])
    sys.modules["plot"] = importlib.util.module_from_spec(spec)
    return importlib.import_module("plot.style")


style = load_looks()
matplotlib = style.matplotlib()
FULL, MASKED, HIDDEN = "#7fb8d8", "#e69f00", "#f1f3f5"
GROUPS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"]
COPY = "#9aa4ae"


def save(figure, name):
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    # matplotlib leaves spaces at the ends of lines of paths.
    text = "\n".join(line.rstrip() for line in stream.getvalue().decode().split("\n"))
    (IMAGES / name).write_text(text)
    print(f"docs/images/{name}: {len(text) // 1024} KiB")


# --- tiling ---------------------------------------------------------------------------------------------------------

Mask = namedtuple("Mask", "title len_q len_k left right")  # right: 0 is causal; None: no limit
MASKS = [
    Mask("causal", 1536, 1536, None, 0),
    Mask("causal, window of 512 keys", 1536, 1536, 511, 0),
    Mask("causal, the last 512 of 1536 queries", 512, 1536, None, 0),
]


class TileStats(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("tile_q", "tile_k", "visited", "masked", "skipped")]


def count_tiles(library, mask):
    """The library's tile statistics for this problem with one head."""
    import numpy

    def tensor(rows):
        array = numpy.zeros((1, 1, rows, 64), numpy.float32)
        view = abi.Tensor(array.ctypes.data, abi.F32, 4)
        view.shape[:], view.stride[:] = array.shape, [stride // 4 for stride in array.strides]
        return array, view

    arrays, (q, k, v, o) = zip(*(tensor(rows) for rows in (mask.len_q, mask.len_k, mask.len_k, mask.len_q)))
    attention = abi.Attention(
        struct_size=ctypes.sizeof(abi.Attention), q=q, k=k, v=v, window_left=-1 if mask.left is None else mask.left,
        window_right=-1 if mask.right is None else mask.right)
    outputs = abi.ForwardOutputs(struct_size=ctypes.sizeof(abi.ForwardOutputs), o=o)
    stats = TileStats()
    execution = abi.Execution(struct_size=ctypes.sizeof(abi.Execution), tile_stats=ctypes.addressof(stats))
    library._check(library.lib.cuflash_forward(*map(ctypes.byref, (attention, outputs, execution))))
    del arrays
    return stats


def keys_of(mask, i):
    """The first and last key that query i sees; the last query is aligned with the last key."""
    place = i + mask.len_k - mask.len_q
    low = 0 if mask.left is None else max(0, place - mask.left)
    return low, mask.len_k - 1 if mask.right is None else min(mask.len_k - 1, place + mask.right)


def class_of(mask, i0, i1, j0, j1):
    """The class of the tile with rows i0 to i1 and keys j0 to j1, as section 3 of docs/algorithm.md defines it."""
    (low_first, high_first), (low_last, high_last) = keys_of(mask, i0), keys_of(mask, i1)
    if j1 < low_first or j0 > high_last:
        return "skipped"
    return "full" if j0 >= low_last and j1 <= high_first else "masked"


def tiles_of(mask, stats):
    found = {}
    for i0 in range(0, mask.len_q, stats.tile_q):
        for j0 in range(0, mask.len_k, stats.tile_k):
            i1, j1 = min(i0 + stats.tile_q, mask.len_q) - 1, min(j0 + stats.tile_k, mask.len_k) - 1
            found[i0, j0, i1, j1] = class_of(mask, i0, i1, j0, j1)
    return found


def check_counts(mask, stats, tiles):
    drawn = [*tiles.values()]
    counts = (len(drawn) - drawn.count("skipped"), drawn.count("masked"), drawn.count("skipped"))
    if counts != (stats.visited, stats.masked, stats.skipped):
        sys.exit(f"{mask.title}: drawn are {counts} tiles visited, masked and skipped; the library counts "
                 f"{(stats.visited, stats.masked, stats.skipped)}")


def paint_tiles(axes, mask, stats, tiles):
    """Paints adjacent tiles of one kind in a column as one patch, then the borders of all tiles."""
    colours = {"full": FULL, "masked": MASKED, "skipped": HIDDEN}
    for j0 in range(0, mask.len_k, stats.tile_k):
        column = [(i0, i1, kind) for (i0, j, i1, _), kind in tiles.items() if j == j0]
        for kind, run in itertools.groupby(column, key=lambda tile: tile[2]):
            begins, ends, _ = zip(*run)
            width, height = min(stats.tile_k, mask.len_k - j0), ends[-1] + 1 - begins[0]
            axes.add_patch(matplotlib.patches.Rectangle((j0, begins[0]), width, height, fc=colours[kind], lw=0))
    axes.hlines(range(0, mask.len_q, stats.tile_q), 0, mask.len_k, color=style.PAPER, lw=0.35)
    axes.vlines(range(0, mask.len_k, stats.tile_k), 0, mask.len_q, color=style.PAPER, lw=0.8)


def draw_tiling(library):
    patches = matplotlib.patches
    figure = matplotlib.figure.Figure(figsize=(9.6, 3.95))
    panels = figure.subplots(1, len(MASKS))
    for axes, mask in zip(panels, MASKS):
        stats = count_tiles(library, mask)
        tiles = tiles_of(mask, stats)
        check_counts(mask, stats, tiles)
        paint_tiles(axes, mask, stats, tiles)
        ends = [0, mask.len_q - 1]
        axes.plot([keys_of(mask, i)[1] + 1 for i in ends], ends, color=style.INK, lw=0.9)
        if mask.left is not None:
            first = mask.left - (mask.len_k - mask.len_q)  # the last query that sees the first key
            axes.plot([0, keys_of(mask, ends[1])[0]], [first, ends[1]], color=style.INK, lw=0.9)
        axes.set_xlim(0, mask.len_k), axes.set_ylim(mask.len_q, 0), axes.grid(False)
        axes.set_aspect("equal", anchor="N")
        ticks = range(0, mask.len_k + 1, 2 * stats.tile_k)
        axes.set_xticks(ticks), axes.set_yticks([tick for tick in ticks if tick <= mask.len_q])
        axes.set_xlabel("keys")
        full = stats.visited - stats.masked
        axes.set_title(f"{mask.title}\n{full} full, {stats.masked} masked, {stats.skipped} skipped", loc="left")
    panels[0].set_ylabel("queries")
    words = {FULL: "full: no pair is tested", MASKED: "masked: pairs are tested",
             HIDDEN: "skipped: nothing is computed"}
    figure.legend([patches.Patch(fc=colour, ec=style.GRID) for colour in words], words.values(), ncols=3,
                  loc="outside lower center")
    figure.suptitle(f"Tiles of {stats.tile_q} queries x {stats.tile_k} keys, f32 on the CPU", x=0.01, ha="left",
                    fontsize=11)
    save(figure, "tiling.svg")


# --- the schedule on Hopper -----------------------------------------------------------------------------------------

Box = namedtuple("Box", "lane begin end text colour")
# These times are not measured; the picture shows only the order of events.
COPY_TIME, QUERY_TIME, PRODUCT_TIME, SOFTMAX_TIME, RESCALE_TIME, STORE_TIME = 1.3, 1.3, 2.0, 4.2, 0.8, 1.6
KEY_TILES = 6


def explained(cli):
    """Rows and keys of a tile, stages and warpgroups of the Hopper kernel for head size 128."""
    words = [cli, "explain", "--batch", "1", "--heads", "32", "--len", "4096", "--head-dim", "128", "--dtype", "bf16",
             "--arch", "sm_90a"]
    text = subprocess.run(words, env={**os.environ, "CUFLASH_CUDA_KERNELS": "best"}, stdout=subprocess.PIPE, text=True,
                          check=True).stdout
    found = re.search(r"tiles of (\d+) queries x (\d+) keys, .* (\d+) stages, (\d+) warpgroups that compute", text)
    if not found:
        sys.exit(f"cuflash explain does not describe a kernel for Hopper:\n{text}")
    return [int(word) for word in found.groups()]


class Schedule:
    """The schedule of one CTA for one query tile that sees all keys. Key tiles are numbered in the order of visits."""

    def __init__(self, stages, groups):
        self.stages, self.groups = stages, groups
        self.boxes = []
        self.copied, self.free = {}, {}  # by ("K", n): when the tile has arrived; when its last reader has released it
        self.copying_until = QUERY_TIME
        self.tensor_until = 0.0
        self.boxes.append(Box("copies", 0, QUERY_TIME, "Q", COPY))
        # sm90/forward/producer.h: K of a tile is loaded before V of the previous tile.
        self.to_copy = [copy for n in range(KEY_TILES + 1) for copy in (("K", n), ("V", n - 1))
                        if 0 <= copy[1] < KEY_TILES]
        self.follow()

    def arrival(self, what, n):
        """When a tile arrives. The producer copies tiles in order, each into a stage that all warpgroups have
        released."""
        while (what, n) not in self.copied:
            kind, m = self.to_copy.pop(0)
            begin = max(self.copying_until, self.free.get((kind, m - self.stages), 0.0))
            self.copying_until = self.copied[kind, m] = begin + COPY_TIME
            self.boxes.append(Box("copies", begin, self.copying_until, f"{kind}{m}", COPY))
        return self.copied[what, n]

    def product(self, group, at, text):
        begin = max(at, self.tensor_until)
        self.tensor_until = begin + PRODUCT_TIME
        self.boxes.append(Box("tensor cores", begin, self.tensor_until, text, GROUPS[group]))
        return self.tensor_until

    def compute(self, group, begin, duration, text):
        self.boxes.append(Box(f"warpgroup {group + 1}", begin, begin + duration, text, GROUPS[group]))
        return begin + duration

    def release(self, what, n, at):
        self.free[what, n] = max(self.free.get((what, n), 0.0), at)

    def follow(self):
        """Simulates sm90/forward/consumer.h: `prologue`, then `advance`, then the end of `mainloop`."""
        turn = 0.0  # when the next warpgroup may issue
        ready = [QUERY_TIME] * self.groups  # when each has done its last step
        for group in range(self.groups):
            issue = max(ready[group], self.arrival("K", 0), turn)
            scored = turn = self.product(group, issue, "S0")
            self.release("K", 0, scored)
            ready[group] = self.compute(group, scored, SOFTMAX_TIME, "softmax 0")
        for n in range(1, KEY_TILES):
            for group in range(self.groups):
                issue = turn = max(ready[group], self.arrival("K", n), self.arrival("V", n - 1), turn)
                scored = self.product(group, issue, f"S{n}")
                summed = self.product(group, issue, f"O{n - 1}")
                self.release("K", n, scored)
                weighed = self.compute(group, scored, SOFTMAX_TIME, f"softmax {n}")
                self.release("V", n - 1, max(weighed, summed))
                ready[group] = self.compute(group, max(weighed, summed), RESCALE_TIME, "")
        last = KEY_TILES - 1
        for group in sorted(range(self.groups), key=lambda group: ready[group]):
            summed = self.product(group, max(ready[group], self.arrival("V", last)), f"O{last}")
            self.release("V", last, summed)
            self.compute(group, summed, STORE_TIME, "store")

    def places(self):
        """The tile that each stage of the rings holds, from the start of its copy to the last release."""
        for kind in "KV":
            for n in range(KEY_TILES):
                begin = self.copied[kind, n] - COPY_TIME
                yield Box(f"{kind} {n % self.stages}", begin, self.free[kind, n], f"{kind}{n}", COPY)


def draw_hopper(cli):
    tile_q, tile_k, stages, groups = explained(cli)
    schedule = Schedule(stages, groups)
    rings = [f"{kind} {stage}" for kind in "KV" for stage in range(stages)]
    lanes = ["copies", "tensor cores", *(f"warpgroup {group + 1}" for group in range(groups)), *rings]
    heights = {lane: 0.42 if lane in rings else 0.8 for lane in lanes}
    top, place = 0.0, {}
    for lane in lanes:
        top += 0.25 if lane in ("K 0", "V 0") else 0.0
        place[lane] = top
        top += heights[lane] + 0.12
    figure = matplotlib.figure.Figure(figsize=(11.5, 0.62 * top))
    axes = figure.subplots()
    for box in [*schedule.boxes, *schedule.places()]:
        pale = box.text in ("", "store") or box.lane in rings
        below, height = place[box.lane], heights[box.lane]
        axes.add_patch(matplotlib.patches.Rectangle((box.begin, below), box.end - box.begin, height, fc=box.colour,
                                                    ec=style.PAPER, lw=0.8, alpha=0.45 if pale else 1.0))
        axes.text((box.begin + box.end) / 2, below + height / 2, box.text, ha="center", va="center",
                  fontsize=6.5 if box.lane in rings else 7.5,
                  color=style.INK if pale or box.colour == COPY else style.LIGHT_ON_COLOUR)
    names = {lane: f"stage {lane[2:]} of {lane[0]}" if lane in rings else lane for lane in lanes}
    names["copies"] = "tensor copies"
    axes.set_yticks([place[lane] + heights[lane] / 2 for lane in lanes], [names[lane] for lane in lanes])
    axes.set_ylim(top, -0.1), axes.set_xlim(0, max(box.end for box in schedule.boxes) + 0.3)
    axes.set_xticks([]), axes.grid(False), axes.tick_params(length=0)
    axes.set_xlabel("time, in order but not to scale")
    axes.spines["left"].set_visible(False)
    axes.set_title(f"{groups} x 64 = {tile_q} queries against {KEY_TILES} tiles of {tile_k} keys, {stages} stages",
                   loc="left")
    save(figure, "hopper.svg")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True, help="a build of cuflash: its library and its command")
    build = parser.parse_args().build.resolve()
    with style.in_style():
        draw_tiling(abi.Library(str(build / "lib" / "libcuflash.so")))
        draw_hopper(build / "bin" / "cuflash")


if __name__ == "__main__":
    main()
