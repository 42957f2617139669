"""Measures forward time by the number of queries, over many keys, for cuflash and its peers in one process.

    python bench/few_queries.py build/release/lib/libcuflash.so --json docs/data/h200_few_queries.json
    python tools/benchmark_tables.py        # redraws the chart in the docs from that file

Between one query (a decode step) and thousands (a chunk of a prompt) the plan changes kernels, tiles and the number of
CTAs that share keys. Time should grow with the work, without jumps. bench/peers_cuda.py explains how times are measured
and results compared.
"""

import argparse
import sys
from pathlib import Path

import peers_cuda as peers
import world

sys.path.append(str(peers.ROOT / "tools"))
import benchmark_data  # noqa: E402

KEYS = 32768
HEADS = ((8, 8), (32, 8))
QUERIES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 640, 768, 1024, 1536, 2048, 3072, 4096)
USUAL_PEERS = "fa3,torch-cudnn"
ROUNDS = 7


def arguments(words=None):
    from peers_calls import PEERS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="libcuflash.so")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--chart", type=Path, metavar="FILE.svg", help="draw them; needs matplotlib")
    parser.add_argument("--queries", default="", metavar="N,...", help="these numbers of queries alone")
    parser.add_argument("--keys", type=int, default=KEYS, help=f"of a sequence (default: {KEYS})")
    parser.add_argument("--peers", default=USUAL_PEERS, metavar="NAME,...",
                        help=f"contestants in addition to cuflash (default: {USUAL_PEERS})")
    parser.add_argument("--seconds", type=float, default=0.01, help="time per contestant and point (default: 0.01)")
    parser.add_argument("--commit", default="", help="commit of the library, if this is not a git checkout")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"at least (default: {ROUNDS})")
    parser.add_argument("--dry-run", action="store_true", help="toy shapes on the CPU: a test of this program")
    options = parser.parse_args(words)
    options.quick = False
    peers.choose(parser, options, "peers", PEERS)
    for name in ("json", "chart"):
        peers.require_folder(parser, options, name)
    options.shapes = shapes(options)
    return options


def shapes(options):
    from peers_shapes import Shape, toy
    queries = [int(part) for part in options.queries.split(",") if part] or QUERIES
    found = [Shape("few queries", "forward", 1, heads_q, heads_k, len_q, options.keys, 128)
             for heads_q, heads_k in HEADS for len_q in queries]
    return [toy(shape) for shape in found] if options.dry_run else found


def line_of(shape, results, absent):
    cells = [f"{result['contestant']} {1e3 * result['ms']:.1f} us" for result in results]
    return f"{shape.len_q} queries, {shape.heads_q}/{shape.heads_k}: " + ", ".join(cells)


def main(words=None):
    options = arguments(words)
    content = peers.measure_all("few_queries", words, options, options.shapes, peers.measure, world.prepare, line_of)
    if options.chart:
        import benchmark_charts
        benchmark_charts.draw_few_queries(benchmark_data.Bench("few_queries", content), options.chart)
        print(f"{options.chart}: drawn")


if __name__ == "__main__":
    main()
