"""Groups points into panels. The points of a panel differ only in one size, which is its axis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Dict, Iterable, List, Optional, Tuple

from . import text
from .problem import Problem
from .results import Point


@dataclass(frozen=True)
class Axis:
    """A size that points are drawn against, and the parts of a problem that it replaces."""

    label: str
    value: Callable[[Problem], int]
    replaces: Tuple[str, ...]


LENGTH = Axis("length (queries and keys)", lambda p: p.len_k, ("length",))
KEYS = Axis("keys", lambda p: p.len_k, ("keys",))
BATCH = Axis("batch", lambda p: p.batch, ("batch",))
QUERIES = Axis("queries", lambda p: p.len_q, ("queries",))


def _pair(a: int, b: int) -> str:
    return f"{a}" if a == b else f"{a}/{b}"


# A problem in words, apart from its device, direction and type. `length` is used if there are as many queries as keys.
PARTS: Dict[str, Callable[[Problem], str]] = {
    "dim": lambda p: f"D {_pair(p.head_dim, p.head_dim_v)}",
    "heads": lambda p: f"{_pair(p.heads_q, p.heads_k)} head{'s' if p.heads_q > 1 else ''}",
    "batch": lambda p: f"batch {p.batch}",
    "queries": lambda p: "" if _square(p) else f"{text.length(p.len_q)} quer{'ies' if p.len_q > 1 else 'y'}",
    "keys": lambda p: "" if _square(p) else f"{text.length(p.len_k)} keys",
    "length": lambda p: f"length {text.length(p.len_k)}" if _square(p) else "",
    "page": lambda p: f"pages of {p.page_size}" if p.page_size else "no pages",
    "mask": lambda p: "causal" if p.causal else "no mask",
}


def _square(p: Problem) -> bool:
    return p.direction != "decode" and p.len_q == p.len_k


@dataclass
class Facet:
    """The points of one panel by contestant, in the order of the axis."""

    parts: Dict[str, str]
    order: tuple
    causal: bool
    points: Dict[str, List[Point]] = field(default_factory=dict)
    title: str = ""

    def problems(self) -> List[Problem]:
        return [point.problem for points in self.points.values() for point in points]


def _parts(problem: Problem, without: Iterable[str]) -> Dict[str, str]:
    return {name: words(problem) for name, words in PARTS.items() if name not in without}


def _grouped(points: Iterable[Point], axis: Axis, without: Tuple[str, ...]) -> List[Facet]:
    facets: Dict[tuple, Facet] = {}
    for point in points:
        p = point.problem
        dropped = ("keys", *without) if axis is LENGTH and not _square(p) else without
        parts = _parts(p, dropped)
        order = (p.head_dim, p.head_dim_v, p.heads_q, p.heads_k, p.page_size,
                 0 if "batch" in dropped else p.batch, 0 if "queries" not in parts or _square(p) else p.len_q,
                 0 if "keys" in dropped or _square(p) else p.len_k, p.causal)
        facet = facets.setdefault((*parts.values(), order), Facet(parts, order, p.causal))
        facet.points.setdefault(point.contestant, []).append(point)
    for facet in facets.values():
        for mine in facet.points.values():
            mine.sort(key=lambda point: axis.value(point.problem))
    return sorted(facets.values(), key=lambda facet: facet.order)


def _has_one_batch(facet: Facet, axis: Axis) -> bool:
    """Whether there is only one batch size at each position of the axis."""
    return len({(axis.value(p), p.batch) for p in facet.problems()}) == len({axis.value(p) for p in facet.problems()})


def _common_batch(facets: List[Facet], axis: Axis) -> str:
    problems = [p for facet in facets for p in facet.problems()]
    tokens = {p.batch * axis.value(p) for p in problems}
    if len({p.batch for p in problems}) == 1:
        return f"batch {problems[0].batch}"
    if len(tokens) == 1:
        return f"batch x length = {text.length(tokens.pop())} tokens"
    return "the batch depends on the length"


def facets_of(points: Iterable[Point], axis: Axis) -> Tuple[List[Facet], str]:
    """The panels, titled by what distinguishes them, and what they have in common in words.

    A batch size that follows from the length, as with a fixed number of tokens, does not separate panels.
    """
    points = list(points)
    joined = _grouped(points, axis, (*axis.replaces, "batch"))
    follows = axis is not BATCH and all(_has_one_batch(facet, axis) for facet in joined)
    facets = joined if follows else _grouped(points, axis, axis.replaces)
    names = [name for name in PARTS if any(name in facet.parts for facet in facets)]
    common = [name for name in names if len({facet.parts.get(name, "") for facet in facets}) == 1]
    for facet in facets:
        facet.title = ", ".join(facet.parts.get(n, "") for n in names if n not in common and facet.parts.get(n))
    words = [facets[0].parts.get(name, "") for name in common] if facets else []
    words = [word for word in words if word and word != "no pages"]
    if follows and facets:
        words.append(_common_batch(facets, axis))
    return facets, ", ".join(words)


def by_axis(points: Iterable[Point]) -> List[Tuple[str, Axis, List[Point]]]:
    """Groups points of forward or backward by a suitable axis, with a name for the axis in names of pictures.

    The axis is the number of queries for points with fewer queries than keys, if that number varies; otherwise it is
    the length.
    """
    points = list(points)
    short = [point for point in points if not _square(point.problem)]
    if len({point.problem.len_q for point in short}) < 2:
        return [("", LENGTH, points)]
    square = [point for point in points if _square(point.problem)]
    return [each for each in (("", LENGTH, square), ("queries-", QUERIES, short)) if each[2]]


def rows_of(facets: List[Facet], columns: int = 4) -> List[List[Optional[Facet]]]:
    """Arranges panels in rows: those with a causal mask below those without, if each group fits into a row."""
    plain, causal = [f for f in facets if not f.causal], [f for f in facets if f.causal]
    keys = sorted({f.order[:-1] for f in facets})
    if plain and causal and len(keys) <= columns:
        return [[next((f for f in group if f.order[:-1] == key), None) for key in keys] for group in (plain, causal)]
    return [[*group[n:n + columns]] for group in (plain, causal) for n in range(0, len(group), columns)]
