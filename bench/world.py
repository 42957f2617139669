"""The performance map: measures what models run, with cuflash and every library that can compute it, in one process.

    python bench/world.py build/release/lib/libcuflash.so --json docs/data/h200_world.json
    python tools/benchmark_tables.py        # updates the table and the chart in the docs from that file

bench/world_shapes.py lists the cases by name: options, grouped and few heads, head sizes, packed and padded batches,
few queries over many keys, types, latent decode. The contestants are those of bench/peers_cuda.py, which explains how
times are measured and results compared, and PyTorch's compiled flex_attention in cases in which it may be the fastest.
With dropout only the norms of results can agree. "cuflash-plain" is one more contestant: cuflash without the options of
a case, with as many key heads as query heads.

The table at the end is ordered by the ratio to the fastest peer, worst first; "to plain" is the speed relative to
cuflash-plain in TFLOP/s.
"""

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import peers_cuda as peers

sys.path.append(str(peers.ROOT / "tools"))
import benchmark_data  # noqa: E402

PLAIN = benchmark_data.PLAIN
ROUNDS = {"quick": 5, "full": 7}
COMPILING = 12  # threads; a kernel takes seconds
HOPELESS = 6  # a peer this many times slower than cuflash is left out: it would take most of the time of a run


def arguments(words=None):
    from peers_calls import PEERS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="libcuflash.so")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--chart", type=Path, metavar="FILE.svg", help="draw the ratios, worst first; needs matplotlib")
    parser.add_argument("--cases", default="", metavar="TEXT;...", help="only cases whose names contain one of these")
    parser.add_argument("--directions", default="", metavar="NAME,...", help="forward, backward or decode alone")
    parser.add_argument("--quick", action="store_true", help="a few cases, under a minute")
    parser.add_argument("--peers", default="", metavar="NAME,...", help="only these contestants in addition to cuflash")
    parser.add_argument("--seconds", type=float, default=0.01, help="time per contestant and case (default: 0.01)")
    parser.add_argument("--commit", default="", help="commit of the library, if this is not a git checkout")
    parser.add_argument("--rounds", type=int, default=0, help="at least (default: 7, 5 with --quick)")
    parser.add_argument("--dry-run", action="store_true", help="toy shapes on the CPU: a test of this program")
    options = parser.parse_args(words)
    peers.choose(parser, options, "peers", (*PEERS, "torch-flex"))
    peers.choose(parser, options, "directions", ("forward", "backward", "decode"))
    for name in ("json", "chart"):
        peers.require_folder(parser, options, name)
    options.rounds = options.rounds or ROUNDS["quick" if options.quick else "full"]
    options.shapes = chosen_shapes(options)
    if not options.shapes:
        parser.error(f"--cases {options.cases}: no case is called that")
    return options


def chosen_shapes(options):
    from peers_shapes import toy
    from world_shapes import all_shapes, quick_shapes
    parts = [part.strip().lower() for part in options.cases.split(";") if part.strip()]
    shapes = [shape for shape in (quick_shapes() if options.quick else all_shapes())
              if shape.direction in options.directions
              and (not parts or any(part in shape.group.lower() for part in parts))]
    return [toy(shape) for shape in shapes] if options.dry_run else shapes


def prepare(shapes, libraries, device):
    """Compiles the kernels of cuflash in parallel; one by one they would take most of a first run."""
    from peers_calls import Tensors

    def compile_for(shape):
        try:
            for call in libraries["cuflash"].forms(Tensors(shape, device)).values():
                call()
        except RuntimeError:
            pass  # reported when the shape is measured

    wanted = dict.fromkeys(s for shape in shapes for s in (shape, shape.plain) if s is not None)
    if device == "cuda":
        pool = ThreadPoolExecutor(COMPILING)
        try:
            list(pool.map(compile_for, wanted))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # a signal does not wait for the rest
        peers.empty_cache(device)


def measure(shape, libraries, timer, device):
    """Like measure of peers_cuda, plus the plain problem as a contestant, minus contestants that are far behind."""
    from world_shapes import FLEX
    called = {name: library for name, library in libraries.items() if name != "torch-flex" or shape.group in FLEX}
    calls, absent = peers.agreeing_calls(shape, called, device)
    calls = without_hopeless(calls, absent, timer)
    if shape.plain:
        plain, _ = peers.agreeing_calls(shape.plain, {"cuflash": libraries["cuflash"]}, device)
        calls |= {(PLAIN, form): call for (_, form), call in plain.items()}
    times = timer.milliseconds(calls)
    found = peers.best_forms(shape, {key: ms for key, ms in times.items() if key[0] != PLAIN})
    if shape.plain:
        beside = peers.best_forms(shape.plain, {key: ms for key, ms in times.items() if key[0] == PLAIN})
        found += [{**result, **peers.described(shape)} for result in beside]
    return found, absent


def without_hopeless(calls, absent, timer):
    """The calls without contestants whose every form is far behind in a first, single measurement."""
    once = {key: min(timer.once(call) for _ in range(2)) for key, call in calls.items()}
    fastest = {}
    for (name, _), ms in once.items():
        fastest[name] = min(ms, fastest.get(name, ms))
    slow = {name: ms for name, ms in fastest.items() if ms > HOPELESS * fastest["cuflash"]}
    absent |= {name: f"one call took {ms / fastest['cuflash']:.0f} times as long as that of cuflash"
               for name, ms in slow.items()}
    return {key: call for key, call in calls.items() if key[0] not in slow}


def line_of(shape, results, absent):
    """A line with the speed of cuflash, and how many times as long the others take."""
    by = {result["contestant"]: result for result in results}
    ours = by["cuflash"]
    others = [f"{name} {result['ms'] / ours['ms']:.2f}x" for name, result in by.items() if name != "cuflash"]
    return (f"{shape.group}, {shape.direction}: {1e3 * ours['ms']:.1f} us, {ours['tflops']:.0f} TFLOP/s; "
            + ", ".join(others))


def main(words=None):
    options = arguments(words)
    content = peers.measure_all("world", words, options, options.shapes, measure, prepare, line_of)
    source = benchmark_data.Bench("world", content)
    from benchmark_tables import world_table
    print("", *world_table(benchmark_data.standings(source)), sep="\n")
    if options.chart:
        import benchmark_charts
        benchmark_charts.draw_world(source, options.chart)
        print(f"{options.chart}: drawn")


if __name__ == "__main__":
    main()
