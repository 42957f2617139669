"""Compares documents as a mask tensor with the same documents as packed sequences, both by cuflash, in one process.

    python bench/documents.py build/release/lib/libcuflash.so --json docs/data/h200_documents.json
    python tools/benchmark_tables.py        # updates the table in the docs from that file

A mask tensor says the same as the lengths of packed sequences, but has to be read: a call makes its summary, or takes
one that was made earlier ("cuflash-summary"). The mask is [B, 1, S, S] and does not include the causal mask.
bench/peers_cuda.py explains how times are measured and results compared.
"""

import argparse
import copy
from pathlib import Path

import peers_cuda as peers
import world

# (head size, heads, tokens of a document)
CASES = ((128, 16, 700), (128, 16, 200), (128, 16, 2000), (64, 32, 700))
BATCH, LENGTH = 4, 4096
ROUNDS = 9
SUMMARY, PACKED = "cuflash-summary", "cuflash-packed"


class Summarized:
    """A mask tensor with a summary that was made before the call."""

    def __init__(self, cuflash):
        self.cuflash = cuflash

    def forms(self, t):
        own = copy.copy(t)
        own.summary = self.cuflash.summarize(t.mask)
        return self.cuflash.forms(own)


class Packed:
    """The same documents, each a sequence of a packed batch."""

    def __init__(self, cuflash):
        self.cuflash = cuflash

    def forms(self, t):
        from peers_calls import Tensors
        s = t.shape
        lengths = tuple(min(s.document, s.len_q - first) for first in range(0, s.len_q, s.document)) * s.batch
        own = Tensors(s._replace(mask="", lengths=lengths, batch=len(lengths), len_q=s.document, len_k=s.document),
                      t.device)
        for name in ("q", "k", "v", "dout"):
            tensor = getattr(t, name)
            setattr(own, name, None if tensor is None else tensor.flatten(0, 1))
        return {name: in_shape(call, t.q.shape) for name, call in self.cuflash.forms(own).items()}


def in_shape(call, shape):
    """Wraps a call so that its results are compared as [B, S, H, D]."""
    def again():
        return call()
    again.in_shape = lambda found: (
        tuple(x.view(shape) for x in found) if isinstance(found, tuple) else found.view(shape))
    return again


def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="libcuflash.so")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--directions", default="", metavar="NAME,...", help="forward or backward alone")
    parser.add_argument("--seconds", type=float, default=0.02, help="time per call and point (default: 0.02)")
    parser.add_argument("--commit", default="", help="commit of the library, if this is not a git checkout")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"at least (default: {ROUNDS})")
    parser.add_argument("--dry-run", action="store_true", help="toy shapes on the CPU: a test of this program")
    options = parser.parse_args(words)
    options.quick, options.peers = False, ()
    peers.choose(parser, options, "directions", ("forward", "backward"))
    peers.require_folder(parser, options, "json")
    options.shapes = shapes(options)
    return options


def shapes(options):
    from peers_shapes import Shape, toy
    found = [Shape("documents", direction, BATCH, heads, heads, LENGTH, LENGTH, dim, True, mask="documents",
                   document=document)
             for direction in options.directions for dim, heads, document in CASES]
    return [toy(shape)._replace(document=shape.document // 64) for shape in found] if options.dry_run else found


def measure(shape, libraries, timer, device):
    cuflash = libraries["cuflash"]
    forms = {"cuflash": cuflash, SUMMARY: Summarized(cuflash), PACKED: Packed(cuflash)}
    return peers.measure(shape, forms, timer, device)


def line_of(shape, results, absent):
    by = {result["contestant"]: result["ms"] for result in results}
    ratio = lambda ms: f", {ms / by[PACKED]:.2f}" if PACKED in by else ""
    cells = [f"{name} {1e3 * ms:.1f} us{ratio(ms)}" for name, ms in by.items()] + [str(reason) for reason in absent]
    return f"{shape.direction}, D={shape.head_dim}, documents of {shape.document}: " + "; ".join(cells)


def main(words=None):
    options = arguments(words)
    peers.measure_all("documents", words, options, options.shapes, measure, world.prepare, line_of)


if __name__ == "__main__":
    main()
