#!/usr/bin/env python3
"""Writes the tables and charts of docs/benchmarks.md, docs/map.md, README.md and README.zh.md from docs/data.

  tools/benchmark_tables.py            rewrites the text between the markers, and draws charts whose data changed
                                       (which needs matplotlib)
  tools/benchmark_tables.py --check    fails if a page or a chart does not match the data (docs_benchmarks_test)

A block of a page begins with <!-- figures: name --> and ends with <!-- end of figures -->; BLOCKS lists the functions
that write them. A chart ends with the digest of its data.
"""

import argparse
import re
import sys

import benchmark_data as data
from benchmark_data import NAMES, ROOT, Table, mean, ratio

PAGES = {"docs/benchmarks.md": "en", "docs/map.md": "en", "README.md": "en", "README.zh.md": "zh"}
MARKED = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
SHOWN = ("fa3", "fa4", "torch-cudnn", "torch-flash")  # the others are far behind; the files have them
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
# Headings of README.md's table in Chinese; every other word of it is a name or a number.
CHINESE = {"H200, bf16": "H200，bf16", "points": "点数", "fastest": "最快", "against": "对比",
           "forward": "前向", "backward": "反向", "decode": "解码"}


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def times(value):
    """A ratio, in bold if cuflash is slower."""
    if value is None:
        return "–"
    words = f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
    return f"**{words}**" if value < 0.995 else words


def origin(source, *more):
    """The origin of figures: command, commit, date, files."""
    files = ", ".join(f"[{s.name}](data/{s.name})" for s in (source, *more))
    return f"`{source.command}`, commit {source.commit}, {source.date}; {files}."


def cells_of(ratios):
    """Geometric mean, worst ratio, and the number of points at which cuflash is slower."""
    ratios = [value for value in ratios if value is not None]
    if not ratios:
        return ["", "", ""]
    return [times(mean(ratios)), times(min(ratios)), f"{sum(value < 0.995 for value in ratios)} of {len(ratios)}"]


# --- summary ----------------------------------------------------------------------------------------------------------

def gpu_rows(source, words):
    """A table of TFLOP/s by contestant."""
    peers = [column[:-len("_tflops")] for column in source.rows[0] if column.endswith("_tflops")][1:]
    for peer in sorted(peers, key=list(NAMES).index):
        if peer == "torch-efficient" and len(peers) > 1:
            continue
        ratios = {direction: [row["cuflash_tflops"] / row[f"{peer}_tflops"] for row in source.rows
                              if row["direction"] == direction] for direction in ("forward", "backward")}
        yield ["H200", words, NAMES[peer], *cells_of(ratios["forward"]), *cells_of(ratios["backward"])]


def group_rows(source, group, words):
    points = source.group(*group)
    for peer in source.peers(*group):
        if peer == "torch-efficient":
            continue  # far behind the others; the file has it
        forward, backward = ([ratio(by, peer) for problem, by in points if problem["direction"] == direction]
                             for direction in ("forward", "backward"))
        yield ["H200", words, NAMES[peer], *cells_of(forward), *cells_of(backward)]


def decode_rows():
    """Rows of (batch, keys, {name: GB/s}) for cuflash with its page sizes, and for peers with a contiguous cache."""
    if data.has_peers():
        source, rows = data.dense(), {}
        for problem, by in source.group("decode"):
            row = rows.setdefault((problem["batch"], problem["len_k"]), {})
            page = problem["page_size"]
            row[f"page_{page}" if page else "contiguous"] = by["cuflash"]["gbs"]
            row.update({(name if not page else f"{name}_{page}"): by[name]["gbs"] for name in by if name != "cuflash"})
        return source, [(batch, keys, row) for (batch, keys), row in rows.items()]
    source = Table("h200_decode_step.json")
    return source, [(row["batch"], row["keys"], row) for row in source.rows]


def decode_peers(steps):
    return [name for name in SHOWN if any(name in row for _, _, row in steps)]


def cpu_rows(machine, name):
    source = Table(name)
    for dtype, threads in dict.fromkeys((row["dtype"], row["threads"]) for row in source.rows):
        chosen = [row for row in source.rows if (row["dtype"], row["threads"]) == (dtype, threads)]
        yield [machine, f"{dtype}, {threads} thread{'s' if threads > 1 else ''}", "PyTorch",
               *cells_of([row["forward_ratio"] for row in chosen]),
               *cells_of([row["backward_ratio"] for row in chosen])]


def summary(_):
    source = data.dense()
    rows = [*group_rows(source, ("forward", "backward"), "bf16")]
    _, steps = decode_rows()
    for peer in decode_peers(steps):
        ratios = [row["contiguous"] / row[peer] for _, _, row in steps if peer in row]
        rows.append(["H200", "decode, contiguous cache", NAMES[peer], *cells_of(ratios), "", "", ""])
    ratios = [row["cudnn_ms"] / row["cuflash_ms"] for row in Table("h200_training.json").rows]
    rows.append(["H200", "training step, S=4096", "cuDNN", *cells_of(ratios), "", "", ""])
    rows += gpu_rows(Table("h200_f32.json"), "f32")
    rows += gpu_rows(Table("h200_portable.json"), "bf16, portable kernels")
    rows += cpu_rows("Xeon", "xeon_torch.json")
    rows += cpu_rows("Neoverse-V1", "neoverse_v1_torch.json")
    for machine, name in (("Xeon", "xeon_decode.json"), ("Neoverse-V1", "neoverse_v1_decode.json")):
        rows.append([machine, "decode", "PyTorch", *cells_of([r["torch_ratio"] for r in Table(name).rows]), "", "", ""])
    head = ["machine", "what", "against", "forward: mean", "worst", "slower at",
            "backward: mean", "worst", "slower at"]
    others = ("h200_training", "h200_f32", "h200_portable", "xeon_decode", "neoverse_v1_decode")
    sources = (f"- {origin(Table(f'{name}.json'))}" for name in others)
    return [*table(head, rows), "", "Sources of rows without a table below:", "", *sources]


# --- H200 -------------------------------------------------------------------------------------------------------------

def shown_peers(source, *groups):
    """The peers that a table of points has room for."""
    return [name for name in source.peers(*groups) if name in SHOWN]


def dense(_):
    source = data.dense()
    peers = shown_peers(source, "forward", "backward")
    points = {(p["direction"], p["head_dim"], p["causal"], p["len_k"]): by
              for p, by in source.group("forward", "backward")}
    lengths = [n for n in LENGTHS if any(place[3] == n for place in points)]
    rows = []
    for direction, dim, causal in dict.fromkeys(place[:3] for place in points):
        cells = []
        for length in lengths:
            by = points.get((direction, dim, causal, length))
            against = " / ".join(times(ratio(by, peer)) for peer in peers) if by else ""
            cells.append(f"{by['cuflash']['tflops']:.0f} ({against})" if by else "")
        rows.append([direction, str(dim), "causal" if causal else "none", *cells])
    words = [f"TFLOP/s of cuflash, and in brackets its speed relative to {' / '.join(NAMES[peer] for peer in peers)};",
             "16,384 tokens in a batch, hidden size 2,048."]
    if "fa3" not in peers:
        words[-1] += " FlashAttention-3 (FA3) has not been measured in one process with cuflash yet."
    return [*words, "", *table(["direction", "D", "mask", *(f"S={n:,}" for n in lengths)], rows), "", origin(source)]


def spread(ratios):
    """Geometric mean, followed by the worst and the best ratio in brackets."""
    ratios = [value for value in ratios if value is not None]
    if len(ratios) < 2:
        return times(ratios[0] if ratios else None)
    return f"{times(mean(ratios))} ({times(min(ratios))}–{times(max(ratios))})"


def world_table(standings):
    """Cases of bench/world.py, in the order given."""
    def speed(each, result):
        if result is None:
            return "–"
        if result["gbs"] is not None:
            return f"{result['gbs']:.0f} GB/s"
        short = min(r["ms"] for r in (each.ours, each.theirs) if r) < 0.1
        return f"{1e3 * result['ms']:.0f} us" if short else f"{result['tflops']:.0f}"
    rows = [[each.name, each.direction, speed(each, each.ours), NAMES.get(each.peer, "–"), speed(each, each.theirs),
             times(each.ratio), "–" if each.to_plain is None else f"{each.to_plain:.2f}"]
            for each in standings]
    return table(["case", "direction", "cuflash", "best peer", "its speed", "ratio", "to plain"], rows)


def world_standing(standings):
    """A sentence that counts the cases behind the best peer."""
    ratios = [each.ratio for each in standings if each.ratio is not None]
    below = lambda limit: sum(value < limit for value in ratios)
    return (f"{len(ratios)} points, each against its best peer: {mean(ratios):.2f} on average (geometric mean), "
            f"{times(min(ratios))} at worst; {below(0.995)} are below 1, {below(0.9)} below 0.9.")


def world(_):
    """The performance map."""
    source = data.Bench(data.WORLD)
    standings = data.standings(source)
    return ["![Speed relative to the best peer, worst first](images/h200_world.svg)", "", world_standing(standings), "",
            *world_table(standings), "", origin(source)]


def world_rest(_):
    """The cases that were measured in an earlier run."""
    source = data.Bench(data.WORLD_REST)
    return [*world_table(data.standings(source)), "", origin(source)]


def world_summary(_):
    source = data.Bench(data.WORLD)
    return [world_standing(data.standings(source)), "", origin(source)]


def documents(_):
    """Times of documents as a mask tensor, relative to the same documents packed."""
    if not data.has_documents():
        return ["`python bench/documents.py build/release/lib/libcuflash.so "
                f"--json docs/data/{data.DOCUMENTS}` measures this."]
    source, rows = data.Bench(data.DOCUMENTS), []
    for problem, by in source.points.items():
        if problem["direction"] != "forward":
            continue
        cells = []
        for direction in ("forward", "backward"):
            by = source.points.get(data.Problem(problem | {"direction": direction}), {})
            if "cuflash-packed" not in by:  # not measured
                cells += ["–"] * 3
                continue
            packed = by["cuflash-packed"]["ms"]
            cells += [f"{1e3 * packed:.0f} us",
                      *(f"{by[name]['ms'] / packed:.2f}" for name in ("cuflash", "cuflash-summary"))]
        words = problem["variant"].removeprefix("mask of ").removesuffix(" token documents")
        rows.append([words, str(problem["head_dim"]), *cells])
    head = ["tokens of a document", "D", "packed, forward", "mask", "its summary",
            "packed, backward", "mask", "its summary"]
    return table(head, rows) + ["", origin(source)]


def decode(_):
    source, steps = decode_rows()
    peers = decode_peers(steps)
    paged = [f"{peer}_16" for peer in peers if any(f"{peer}_16" in row for _, _, row in steps)]
    pages = sorted({int(name[5:]) for _, _, row in steps for name in row if name.startswith("page_")}, reverse=True)
    rows = []
    for batch, keys, row in steps:
        ours = row["contiguous"]
        rows.append([str(batch), f"{keys:,}", f"{ours:.0f}", *(f"{row[f'page_{size}']:.0f}" for size in pages),
                     *(f"{row[peer]:.0f}" if peer in row else "–" for peer in peers),
                     *(times(ours / row[peer]) if peer in row else "–" for peer in peers),
                     *(times(row["page_16"] / row[name]) if name in row else "–" for name in paged)])
    head = ["B", "keys", "cuflash", *(f"pages of {size}" for size in pages), *(NAMES[peer] for peer in peers),
            *(f"to {NAMES[peer]}" for peer in peers), *(f"pages of 16 to those of {NAMES[n[:-3]]}" for n in paged)]
    return table(head, rows) + ["", origin(source)]


def host(_):
    native, python = Table("h200_host_time.json"), Table("h200_python_host_time.json")
    launch, _, call = (row["us"] for row in native.rows[:3])
    calls = {row["call"]: row["us"] for row in python.rows}
    kinds = {"": "forward", ", graph recorded": "forward that records a graph",
             ", forward + backward": "forward and backward"}
    measured = ", ".join(f"{words} {calls[f'flash_attn_func{kind}']:.1f} us ({calls[f'SDPA{kind}']:.1f})"
                         for kind, words in kinds.items())
    return [f"A call from C++ takes {call:.2f} us of host time, and an empty launch {launch:.2f} us. From Python",
            f"(PyTorch's SDPA in brackets): {measured}.", origin(native), origin(python)]


# --- CPU --------------------------------------------------------------------------------------------------------------

def all_threads(source):
    """The rows with every core; those of one thread are in the file, and in the summary."""
    most = max(row["threads"] for row in source.rows)
    return [row for row in source.rows if row["threads"] == most]


def cpu(name):
    source = Table(name)
    lengths = sorted({row["length"] for row in source.rows})
    points = {(row["dtype"], row["head_dim"], row["causal"], row["length"]): row for row in all_threads(source)}
    rows = []
    for place in dict.fromkeys(place[:3] for place in points):
        found = [points[(*place, n)] for n in lengths]
        cells = [f"{times(row['forward_ratio'])} / {times(row['backward_ratio'])}" for row in found]
        rows.append([place[0], str(place[1]), "causal" if place[2] else "none", *cells])
    return table(["type", "D", "mask", *(f"S={n:,}" for n in lengths)], rows) + ["", origin(source)]


# --- README -----------------------------------------------------------------------------------------------------------

def readme(language):
    """One row for each direction and head size, and one for decode."""
    say = (lambda words: CHINESE.get(words, words)) if language == "zh" else (lambda words: words)
    source = data.dense()
    _, steps = decode_rows()
    peers = shown_peers(source, "forward", "backward")
    rows = []

    for direction in ("forward", "backward"):
        points = source.group(direction)
        for dim in sorted({problem["head_dim"] for problem, _ in points}):
            chosen = [by for problem, by in points if problem["head_dim"] == dim]
            best = max(by["cuflash"]["tflops"] for by in chosen)
            rows.append([f"{say(direction)}, D={dim}", str(len(chosen)), f"{best:.0f} TFLOP/s",
                         *(spread([ratio(by, peer) for by in chosen]) for peer in peers)])
    best = max(row["contiguous"] for _, _, row in steps)
    rows.append([say("decode"), str(len(steps)), f"{best:.0f} GB/s",
                 *(spread([row["contiguous"] / row[peer] for _, _, row in steps if peer in row]) for peer in peers)])
    head = [say("H200, bf16"), say("points"), say("fastest"), *(f"{say('against')} {NAMES[peer]}" for peer in peers)]
    return table(head, rows)


BLOCKS = {"summary": summary, "dense": dense, "world": world, "world-rest": world_rest, "world-summary": world_summary,
          "documents": documents, "decode": decode, "host": host, "readme": readme,
          "xeon": lambda _: cpu("xeon_torch.json"), "neoverse": lambda _: cpu("neoverse_v1_torch.json")}


def written(text, language):
    """The page with up-to-date blocks."""
    def block(found):
        if found.group(2) not in BLOCKS:
            raise SystemExit(f"benchmark_tables: no block is called {found.group(2)}")
        return found.group(1) + "\n".join(BLOCKS[found.group(2)](language)) + "\n" + found.group(3)
    return MARKED.sub(block, text)


def stale():
    """Messages about pages and charts that do not match the data."""
    from benchmark_charts import IMAGES, charts, mark_of
    for name, language in PAGES.items():
        text = (ROOT / name).read_text()
        if written(text, language) != text:
            yield f"{name}: a table does not match docs/data; run tools/benchmark_tables.py"
    for chart in charts():
        path = IMAGES / chart.name
        if not path.exists() or mark_of(chart) not in path.read_text():
            yield f"docs/images/{chart.name}: does not match docs/data; run tools/benchmark_tables.py"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something would change")
    parser.add_argument("--redraw", action="store_true", help="draw every chart, even if its data has not changed")
    options = parser.parse_args()
    if options.check:
        faults = list(stale())
        print("\n".join(faults) or "tables and charts match docs/data")
        return 1 if faults else 0
    for name, language in PAGES.items():
        text = (ROOT / name).read_text()
        anew = written(text, language)
        if anew != text:
            (ROOT / name).write_text(anew)
            print(f"{name}: updated")
    from benchmark_charts import draw_all
    draw_all(options.redraw)
    return 0


if __name__ == "__main__":
    sys.exit(main())
