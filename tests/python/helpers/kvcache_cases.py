"""Random problems over a KV cache, and their results in float64 straight from the definition.

Memory that no call may touch holds NaN: rows without a token, unused pages, pages that a window hides from all queries.
Entries of the block table that lead there have numbers of no page.
"""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

ALLOWED = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
NO_PAGE = 1_000_003


def rounded(x: np.ndarray, kind: str) -> np.ndarray:
    """The numbers rounded to this type, in float64."""
    if kind == "bfloat16":
        bits = np.asarray(x, np.float32).view(np.uint32)
        with np.errstate(over="ignore"):
            even = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return np.where(np.isnan(x), np.nan, even.astype(np.uint32).view(np.float32)).astype(np.float64)
    return np.asarray(x).astype(kind).astype(np.float64)


@dataclasses.dataclass
class Case:
    """Everything in float64, one array per sequence: q[b] is [Sq, Hq, D], k_new[b] is [Sn, Hk, D]."""

    kind: str
    q: List[np.ndarray]
    k_cache: np.ndarray  # [entries, S, Hk, D] or [pages, page_size, Hk, D]
    v_cache: Optional[np.ndarray]  # None: the first dim_v elements of k_cache
    dim_v: int
    rows: List[int]  # before the append
    k_new: Optional[List[np.ndarray]] = None
    v_new: Optional[List[np.ndarray]] = None
    table: Optional[np.ndarray] = None
    entry: Optional[List[int]] = None
    leftpad: Optional[List[int]] = None
    rotary: Optional[Tuple[np.ndarray, np.ndarray]] = None
    rotary_kind: str = ""
    interleaved: bool = False
    one_position: bool = False
    options: Dict[str, Any] = dataclasses.field(default_factory=dict)  # causal, window, scale, softcap
    slopes: Optional[np.ndarray] = None  # [B, Hq]
    sink: Optional[np.ndarray] = None

    @property
    def batch(self) -> int:
        return len(self.q)

    def new(self, b: int) -> int:
        return 0 if self.k_new is None else len(self.k_new[b])

    def pad(self, b: int) -> int:
        return 0 if self.leftpad is None else self.leftpad[b]

    def place(self, b: int, row: int) -> Tuple[int, int]:
        """The indices of a sequence's row in the first two dimensions of the caches."""
        if self.table is None:
            return (b if self.entry is None else self.entry[b]), row
        size = self.k_cache.shape[1]
        return int(self.table[b, row // size]), row % size

    def turned(self, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """x [rows, heads, D] after rotary embedding, rounded as the library stores it."""
        if self.rotary is None:
            return x
        wide = np.float64 if self.kind == "float64" else np.float32
        x, cos, sin = x.astype(wide), *(table[positions][:, None].astype(wide) for table in self.rotary)
        half = cos.shape[-1]
        first = slice(0, 2 * half, 2) if self.interleaved else slice(0, half)
        second = slice(1, 2 * half, 2) if self.interleaved else slice(half, 2 * half)
        result = x.copy()
        result[..., first] = x[..., first] * cos - x[..., second] * sin
        result[..., second] = x[..., second] * cos + x[..., first] * sin
        return rounded(result, self.kind)

    def caches_after(self) -> Tuple[np.ndarray, np.ndarray]:
        k, v = self.k_cache.copy(), None if self.v_cache is None else self.v_cache.copy()
        for b in range(self.batch):
            rows = np.arange(self.rows[b], self.rows[b] + self.new(b))
            turned = self.turned(self.k_new[b], rows - self.pad(b)) if len(rows) else None
            for i, row in enumerate(rows):
                k[self.place(b, row)] = turned[i]
                if v is not None:
                    v[self.place(b, row)] = self.v_new[b][i]
        return k, k[..., : self.dim_v] if v is None else v

    def answer(self) -> Tuple[List[np.ndarray], List[np.ndarray]]:
        """out[b] [Sq, Hq, Dv] and lse[b] [Hq, Sq]."""
        k_cache, v_cache = self.caches_after()
        outs, lses = [], []
        for b in range(self.batch):
            rows = range(self.pad(b), self.rows[b] + self.new(b))
            len_q, len_k = len(self.q[b]), len(rows)
            visible, shift = self.visible(len_q, len_k), len_k - len_q
            k, v = (np.zeros((len_k, *c.shape[2:])) for c in (k_cache, v_cache))
            for j in np.flatnonzero(visible.any(0)):  # invisible keys do not count
                k[j], v[j] = k_cache[self.place(b, rows[j])], v_cache[self.place(b, rows[j])]
            positions = shift + (np.zeros(len_q, int) if self.one_position else np.arange(len_q))
            out, lse = self.attend(b, self.turned(self.q[b], positions), k, v, visible)
            outs.append(out), lses.append(lse)
        return outs, lses

    def visible(self, len_q: int, len_k: int) -> np.ndarray:
        left, right = self.options.get("window", (-1, -1))
        at, j = np.arange(len_q)[:, None] + len_k - len_q, np.arange(len_k)
        seen = np.ones((len_q, len_k), bool)
        if left >= 0:
            seen &= j >= at - left
        if right >= 0:
            seen &= j <= at + right
        if self.options.get("causal"):
            seen &= j <= at
        return seen

    def attend(self, b: int, q: np.ndarray, k: np.ndarray, v: np.ndarray, visible: np.ndarray) -> Tuple[Any, Any]:
        len_q, heads, dim = q.shape
        group = heads // k.shape[1]
        out, lse = np.zeros((len_q, heads, v.shape[-1])), np.full((heads, len_q), -np.inf)
        distance = np.abs(np.arange(len_q)[:, None] + len(k) - len_q - np.arange(len(k)))
        for h in range(heads):
            scale = self.options.get("scale")
            s = q[:, h] @ k[:, h // group].T * (1 / math.sqrt(dim) if scale is None else scale)
            cap = self.options.get("softcap", 0.0)
            s = cap * np.tanh(s / cap) if cap else s
            if self.slopes is not None:
                s = s - self.slopes[b, h] * distance
            for i in np.flatnonzero(visible.any(1)):
                seen = s[i, visible[i]]
                top = max(seen.max(), self.sink[h] if self.sink is not None else -np.inf)
                p = np.exp(seen - top)
                total = p.sum() + (np.exp(self.sink[h] - top) if self.sink is not None else 0)
                lse[h, i] = top + np.log(total)
                out[i, h] = p @ v[visible[i], h // group] / total
            if self.sink is not None:
                lse[h, ~visible.any(1)] = self.sink[h]
        return out, lse


def draw(seed: int, flash: bool = False) -> Case:
    """flash: only what flash_attn_with_kvcache accepts: one length for all q, and one for all k."""
    rng, choose = np.random.default_rng(seed), random.Random(seed)
    kind = choose.choice(["float64", "float32", "float32", "float16", "bfloat16"])
    yes = lambda chance=0.5: choose.random() < chance  # noqa: E731
    batch, heads_k, group = choose.randint(1, 4), choose.randint(1, 3), choose.choice([1, 1, 2, 4, 7])
    dim = choose.choice([4, 8, 16, 20, 64, 128])
    in_k = yes(0.15)
    dim_v = choose.randint(1, dim) if in_k else choose.choice([dim, dim, dim, 12])

    def normal(*shape: int) -> np.ndarray:
        return rounded(rng.standard_normal(shape), kind)

    appends = yes(0.6)
    pads = [choose.choice([0, 1, 5, 30]) for _ in range(batch)] if yes(0.3) else None
    rows = [(pads[b] if pads else 0) + choose.choice([0, 1, 7, 40, 130]) for b in range(batch)]
    longest_q, longest_new = choose.choice([1, 1, 2, 5, 17]), choose.choice([1, 1, 3, 20])
    new = [longest_new if flash else choose.randint(0, longest_new) for _ in range(batch)] if appends else [0] * batch
    keys = [rows[b] - (pads[b] if pads else 0) + new[b] for b in range(batch)]
    lens_q = [longest_q if flash else choose.randint(0, longest_q) for _ in range(batch)]
    options: Dict[str, Any] = {"causal": yes(), "window": (-1, -1)}
    if yes(0.4):
        options["window"] = (choose.choice([-1, 0, 3, 20]), choose.choice([-1, 0, 2]))
    if yes(0.3):
        options["scale"] = choose.choice([0.05, 0.3])
    if yes(0.3):
        options["softcap"] = choose.choice([2.0, 15.0])

    rotary, rotary_kind, one_position = None, "", False
    if yes(0.5) and (appends and pads is None if flash else True):
        if flash:
            lens_q = new
        lens_q = [min(n, m) for n, m in zip(lens_q, keys)]  # every query has a position
        half = choose.randint(1, dim // 2)
        angle = rng.uniform(-3, 3, (max(keys) + choose.choice([1, 50]), half))
        rotary_kind = kind if yes() or kind == "float64" else "float32"
        rotary = rounded(np.cos(angle), rotary_kind), rounded(np.sin(angle), rotary_kind)
        one_position = not (options["causal"] or options["window"] != (-1, -1)) if flash else yes(0.2)

    case = Case(kind, [normal(n, heads_k * group, dim) for n in lens_q], np.empty(0), None, dim_v, rows,
                leftpad=pads, rotary=rotary, rotary_kind=rotary_kind, interleaved=yes(), one_position=one_position,
                options=options)
    if appends:
        case.k_new = [normal(n, heads_k, dim) for n in new]
        case.v_new = None if in_k else [normal(n, heads_k, dim_v) for n in new]
    if yes(0.3):
        case.slopes = np.float64(rng.random((batch, heads_k * group)).astype(np.float32) * 0.2)
    if yes(0.3):
        case.sink = normal(heads_k * group)
    _make_cache(case, choose, normal, heads_k, dim, in_k)
    return case


def _make_cache(case: Case, choose: random.Random, normal: Any, heads: int, dim: int, in_k: bool) -> None:
    ends = [case.rows[b] + case.new(b) for b in range(case.batch)]
    size = choose.choice([0, 0, 0, 1, 3, 16, 256])
    if size > 0:
        columns = max(-(-end // size) for end in ends) + choose.randint(0, 2)
        pages = case.batch * columns + 3
        free = choose.sample(range(pages), pages)
        case.table = np.full((case.batch, columns), NO_PAGE, np.int32)
        case.table[:, ::2] = -7
        for b in range(case.batch):
            for column in sorted({row // size for row in (*_held(case, b, size), *range(case.rows[b], ends[b]))}):
                case.table[b, column] = free.pop()
        shape = pages, size
    else:
        shape = case.batch + choose.randint(0, 2), max(1, max(ends) + choose.choice([0, 1, 9]))
        if choose.random() < 0.4:
            case.entry = choose.sample(range(shape[0]), case.batch)
    case.k_cache = np.full((*shape, heads, dim), np.nan)
    case.v_cache = None if in_k else np.full((*shape, heads, case.dim_v), np.nan)
    for b in range(case.batch):
        for row in _held(case, b, size):
            case.k_cache[case.place(b, row)] = normal(heads, dim)
            if case.v_cache is not None:
                case.v_cache[case.place(b, row)] = normal(heads, case.dim_v)


def _held(case: Case, b: int, size: int) -> List[int]:
    """Rows before the append that hold a token; with pages (size > 0), those on a page of which a query sees a row."""
    first, end = case.pad(b), case.rows[b]
    if size == 0:
        return list(range(first, end))
    seen = np.flatnonzero(case.visible(len(case.q[b]), end + case.new(b) - first).any(0)) + first
    pages = set((seen // size).tolist())
    return [row for row in range(first, end) if row // size in pages]


def largest_difference(actual: np.ndarray, expected: np.ndarray) -> float:
    """The error; inf where one is infinite or NaN and the other differs."""
    actual = np.asarray(actual, np.float64)
    assert actual.shape == expected.shape, f"{actual.shape} is not {expected.shape}"
    finite = np.isfinite(expected)
    if not np.array_equal(actual[~finite], expected[~finite], equal_nan=True):
        return math.inf
    difference = np.abs(actual[finite] - expected[finite]).max(initial=0.0)
    return float(difference) if np.isfinite(difference) else math.inf


def check(case: Case, outs: List[np.ndarray], lses: List[np.ndarray], k_cache: np.ndarray, v_cache: np.ndarray) -> None:
    """Compares the results and the caches with the definition. Only appended rows may have changed."""
    expected_outs, expected_lses = case.answer()
    allowed = ALLOWED[case.kind]
    # A rotated query is rounded, and a number halfway between two may become either, which shifts its scores.
    allowed_lse = 1e-12 if case.kind == "float64" else 1e-4 + (allowed if case.rotary else 0.0)
    for b in range(case.batch):
        error = largest_difference(outs[b], expected_outs[b])
        largest = np.abs(expected_outs[b]).max(initial=1.0)
        assert error <= allowed * largest, f"out of sequence {b}: off by {error}"
        error = largest_difference(lses[b], expected_lses[b])
        assert error <= allowed_lse, f"lse of sequence {b}: off by {error}"
    expected_k, expected_v = case.caches_after()
    assert np.array_equal(np.asarray(v_cache, np.float64), expected_v, equal_nan=True) or case.v_cache is None
    written = np.zeros(case.k_cache.shape[:2], bool)
    for b in range(case.batch):
        for row in range(case.rows[b], case.rows[b] + case.new(b)):
            written[case.place(b, row)] = True
    k = np.asarray(k_cache, np.float64)
    assert np.array_equal(k[~written], expected_k[~written], equal_nan=True), "k_cache: changed outside of the new rows"
    # One rounding of the type: the library may fuse a multiplication with an addition.
    step = {"float64": 4e-16, "float32": 2.4e-7, "float16": 1e-3, "bfloat16": 8e-3}[case.kind]
    error = largest_difference(k[written], expected_k[written])
    assert error <= 2 * step * np.abs(expected_k[written]).max(initial=0), f"k_cache: new rows are off by {error}"
    if case.rotary is None:
        assert error == 0


def arguments(case: Case, layout: str, packed: bool, seed: int) -> Dict[str, Any]:
    """Arguments of cuflash.attention_with_cache as NumPy arrays: float64 for those with the type of q, see type_of."""
    choose = random.Random(seed)

    def ordered(array: np.ndarray) -> np.ndarray:  # from [batch, rows, heads, dim]
        return array if layout == "bshd" else array.swapaxes(1, 2)

    def batched(sequences: List[np.ndarray], lengths: str, offsets: str, longest: str) -> np.ndarray:
        sizes = [len(x) for x in sequences]
        if packed:
            found[offsets] = np.cumsum([0, *sizes]).astype(np.int32)
            found[longest] = max(sizes)
            return np.concatenate(sequences)
        if len(set(sizes)) > 1 or choose.random() < 0.3:
            found[lengths] = np.int32(sizes)
        padded = np.full((len(sequences), max(sizes), *sequences[0].shape[1:]), np.nan)
        for b, x in enumerate(sequences):
            padded[b, : len(x)] = x
        return ordered(padded)

    found: Dict[str, Any] = {"layout": layout, **case.options}
    found["q"] = batched(case.q, "seqlens_q", "cu_seqlens_q", "max_seqlen_q")
    found["k_cache"] = ordered(case.k_cache.copy())
    found["v_cache"] = None if case.v_cache is None else ordered(case.v_cache.copy())
    found["cache_seqlens"] = case.rows[0] if len(set(case.rows)) == 1 and choose.random() < 0.5 else np.int32(case.rows)
    if case.k_new is not None:
        found["k"] = batched(case.k_new, "seqlens_new", "cu_seqlens_new", "max_seqlen_new")
        if case.v_new is not None:
            found["v"] = batched(case.v_new, "seqlens_new", "cu_seqlens_new", "max_seqlen_new")
    for name, lengths in (("cache_batch_idx", case.entry), ("cache_leftpad", case.leftpad)):
        if lengths is not None:
            found[name] = np.int32(lengths)
    if case.table is not None:
        found["block_table"] = case.table.copy()
    if case.rotary is not None:
        found.update(rotary_cos=case.rotary[0], rotary_sin=case.rotary[1], rotary_interleaved=case.interleaved,
                     rotary_one_position=case.one_position)
    if case.slopes is not None:
        found["alibi_slopes"] = case.slopes.astype(np.float32)
    if case.sink is not None:
        found["sink"] = case.sink
    return found


def type_of(case: Case, name: str) -> str:
    """The type that an argument in float64 must be converted to; "" if it has its own type already."""
    if name in ("rotary_cos", "rotary_sin"):
        return case.rotary_kind
    return case.kind if name in ("q", "k_cache", "v_cache", "k", "v", "sink") else ""


def sequences(case: Case, given: Dict[str, Any], out: np.ndarray, lse: np.ndarray) -> Tuple[List[Any], List[Any]]:
    """out and lse of each sequence; asserts that padding is 0 and -inf."""
    if "cu_seqlens_q" in given:
        cuts = given["cu_seqlens_q"]
        pairs = list(zip(cuts, cuts[1:]))
        return [out[a:b] for a, b in pairs], [lse[:, a:b] for a, b in pairs]
    out = out if given["layout"] == "bshd" else out.swapaxes(1, 2)
    outs, lses = [], []
    for b, q in enumerate(case.q):
        outs.append(out[b, : len(q)]), lses.append(lse[b, :, : len(q)])
        assert (out[b, len(q) :] == 0).all() and np.isneginf(lse[b, :, len(q) :]).all(), "padding of q"
    return outs, lses


def in_rows(array: np.ndarray, layout: str) -> np.ndarray:
    """A cache as [entries, rows, heads, dim]."""
    return array if layout == "bshd" else array.swapaxes(1, 2)
