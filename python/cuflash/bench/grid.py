"""The problems to measure, with the flags, presets and formulas of `cuflash bench`."""

from __future__ import annotations

import argparse
import itertools
from typing import List

from ..plot.problem import ELEMENT_BYTES, Problem

DTYPES = ("f64", "f32", "f16", "bf16")
SPELLINGS = {"f64": ("float64", "fp64", "double"), "f32": ("float32", "fp32", "float", "single"),
             "f16": ("float16", "fp16", "half"), "bf16": ("bfloat16",)}
DIRECTIONS = ("forward", "backward", "decode")
PRESETS = {
    "paper": dict(direction=["forward", "backward"], tokens=16384, hidden=[2048], head_dim=[64, 128, 256],
                  len=[512, 1024, 2048, 4096, 8192, 16384], causal=[0, 1]),
    "training": dict(direction=["forward", "backward"], batch=[1, 4, 8, 16], hidden=[768, 1024, 2048, 4096],
                     head_dim=[64], len=[512, 1024, 2048, 4096], causal=[1]),
    "decode": dict(direction=["decode"], batch=[1, 8, 32], heads=[32], heads_k=[8], head_dim=[128],
                   len=[1024, 4096, 16384, 65536], page_size=[0, 64]),
}
SIZES = {
    "batch": "batch (default: 1)",
    "heads": "query heads (default: 8)",
    "hidden": "hidden size: as many heads as fill it",
    "heads_k": "key and value heads (default: as many)",
    "head_dim": "head size (default: 64)",
    "head_dim_v": "head size of values (default: the same)",
    "len": "keys, and queries without --len-q (default: 512,1024,2048)",
    "len_q": "queries (default: as many as keys; decode: 1)",
    "page_size": "decode: rows of a page; 0: a contiguous cache (default: 0)",
    "causal": "0, 1 or both; 1 without a value (default: 0)",
}
MOST = 2**31 - 1


class GridError(Exception):
    """An invalid flag, or flags that contradict each other."""


class Point(Problem):
    """One problem of the grid."""

    __slots__ = ()

    def __str__(self) -> str:
        def pair(a: int, b: int, sign: str) -> str:
            return str(a) if a == b else f"{a}{sign}{b}"

        return (f"{self.direction} {self.dtype} B={self.batch} H={pair(self.heads_q, self.heads_k, '/')} "
                f"S={pair(self.len_q, self.len_k, 'x')} D={pair(self.head_dim, self.head_dim_v, '/')}"
                f"{' causal' if self.causal else ''}{f' pages of {self.page_size}' if self.page_size else ''}")

    def operations(self) -> float:
        """Useful operations: of the visible pairs, two products forward and five backward."""
        pairs = self.len_q * self.len_k
        if self.causal:  # queries are aligned with the last keys; of a square, half counts
            pairs = pairs - self.len_q**2 / 2 if self.len_q <= self.len_k else self.len_k**2 / 2
        forward = 2.0 * pairs * self.batch * self.heads_q * (self.head_dim + self.head_dim_v)
        return 2.5 * forward if self.direction == "backward" else forward

    def key_value_bytes(self) -> int:
        """The bytes of keys and values, each read once."""
        return self.batch * self.heads_k * self.len_k * (self.head_dim + self.head_dim_v) * ELEMENT_BYTES[self.dtype]


def _words(allowed, spellings=None):
    names = {other: name for name, others in (spellings or {}).items() for other in others}

    def parse(text: str) -> List[str]:
        words = [names.get(word, word) for word in text.lower().split(",")]
        if not set(words) <= set(allowed):
            raise argparse.ArgumentTypeError(f"got {text!r}, may have {', '.join(allowed)}")
        return words

    return parse


def _numbers(text: str) -> List[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}, must be whole numbers with commas between them") from None


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--preset", choices=PRESETS, help="a grid by name; flags override its values")
    parser.add_argument("--direction", type=_words(DIRECTIONS), help="default: forward")
    parser.add_argument("--dtype", type=_words(DTYPES, SPELLINGS), help="default: f32, on a GPU bf16")
    parser.add_argument("--tokens", type=int, help="tokens per batch, from which its size follows")
    for name, text in SIZES.items():
        alone = {"nargs": "?", "const": [1]} if name == "causal" else {}
        parser.add_argument("--" + name.replace("_", "-"), type=_numbers, metavar="N,...", help=text, **alone)


def _complete(given: argparse.Namespace, device: str) -> argparse.Namespace:
    names = ("direction", "dtype", "tokens", *SIZES)
    options = argparse.Namespace(**{name: getattr(given, name) for name in names})
    preset = dict(PRESETS.get(given.preset, {}))
    for alternatives in (("batch", "tokens"), ("heads", "hidden")):
        if all(getattr(options, name) is not None for name in alternatives):
            raise GridError(f"--{alternatives[0]} excludes --{alternatives[1]}")
        if any(getattr(options, name) is not None for name in alternatives):
            for name in alternatives:
                preset.pop(name, None)
    if options.heads is not None or options.hidden is not None:
        preset.pop("heads_k", None)
    defaults = dict(direction=["forward"], dtype=["bf16" if device == "cuda" else "f32"], head_dim=[64],
                    len=[512, 1024, 2048], causal=[0], page_size=[0])
    for source in (preset, defaults):
        for name, value in source.items():
            if getattr(options, name) is None:
                setattr(options, name, value)
    if options.tokens is None and options.batch is None:
        options.batch = [1]
    if options.hidden is None and options.heads is None:
        options.heads = [8]
    return options


def _require_sizes(options: argparse.Namespace) -> None:
    for name in (*SIZES, "tokens"):
        low, high = {"causal": (0, 1), "page_size": (0, MOST)}.get(name, (1, MOST))
        values = getattr(options, name)
        for value in [values] if isinstance(values, int) else values or []:
            if not low <= value <= high:
                raise GridError(f"--{name.replace('_', '-')} has {value}, must be from {low} to {high}")


def _heads(options: argparse.Namespace, dim: int) -> List[int]:
    if options.hidden is None:
        return options.heads
    for hidden in options.hidden:
        if hidden % dim:
            raise GridError(f"--hidden {hidden} is not a multiple of --head-dim {dim}; give --heads instead")
    return [hidden // dim for hidden in options.hidden]


def points(given: argparse.Namespace, device: str) -> List[Point]:
    """Every combination once, longest sequences last."""
    options = _complete(given, device)
    _require_sizes(options)
    found = {}
    for direction, dtype, dim in itertools.product(options.direction, options.dtype, options.head_dim):
        decode = direction == "decode"
        for dim_v, heads in itertools.product(options.head_dim_v or [dim], _heads(options, dim)):
            for heads_k, causal, page, keys in itertools.product(options.heads_k or [heads], options.causal,
                                                                 options.page_size if decode else [0], options.len):
                if heads % heads_k:
                    raise GridError(f"--heads-k {heads_k} does not divide the {heads} heads of queries")
                batches = options.batch if options.tokens is None else [max(1, options.tokens // keys)]
                for queries, batch in itertools.product(options.len_q or [1 if decode else keys], batches):
                    found[Point(device, direction, dtype, batch, heads, heads_k, queries, keys, dim, dim_v,
                                bool(causal), page)] = None
    return list(found)
