"""Reads the results files of `cuflash bench`.

Files may come from anywhere, so every member is checked. An error names the position of a wrong member, its value and
what is allowed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from .problem import ELEMENT_BYTES, Problem

FORMAT = "cuflash-bench-1"
DEVICES = ("cpu", "cuda")
DIRECTIONS = ("forward", "backward", "decode")
MAX_FILE_BYTES = 64 << 20
MAX_RESULTS = 100_000
MAX_TEXT = 2000
MAX_SIZE = 2**31 - 1
MAX_BYTES = 2**60
MS = (1e-9, 1e9)
RATE = (1e-9, 1e7)  # limits of TFLOP/s and GB/s; not 0, because axes are logarithmic
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,39}")
CEILING = re.compile(r"(?:%s)_tflops|read_gbs" % "|".join(ELEMENT_BYTES))


class ResultsError(Exception):
    """Raised for an invalid results file."""


@dataclass(frozen=True)
class Point:
    """The result of one contestant for one problem; unknown values are None."""

    contestant: str
    problem: Problem
    ms: float
    ms_low: float
    ms_high: float
    tflops: Optional[float]
    gbs: Optional[float]
    share: Optional[float]
    clock_mhz: Optional[float]
    extra_bytes: Optional[int]


@dataclass(frozen=True)
class Run:
    """One results file."""

    path: str
    command: str
    version: str
    date: str
    cpu: str
    threads: int
    gpu: Optional[str]
    ceilings: Dict[str, Dict[str, float]]
    points: List[Point]

    def machine(self, device: str) -> str:
        return self.cpu if device == "cpu" else self.gpu or "a GPU without a name"


def _shown(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return "an array" if isinstance(value, list) else "an object"
    text = json.dumps(value[:60] if isinstance(value, str) else value)
    return text if len(text) <= 60 else text[:57] + "..."


class _Reader:
    """A JSON object and its position in the file."""

    def __init__(self, value: Any, where: str):
        self.where = where
        if not isinstance(value, dict):
            raise ResultsError(f"{where}: got {_shown(value)}, must be an object")
        self.value = value

    def fail(self, name: str, allowed: str) -> ResultsError:
        place = f"{self.where}.{name}" if self.where else name
        if name not in self.value:
            return ResultsError(f"{place}: is missing, must be {allowed}")
        return ResultsError(f"{place}: got {_shown(self.value[name])}, must be {allowed}")

    def get(self, name: str) -> Any:
        return self.value.get(name)

    def inside(self, name: str) -> "_Reader":
        if name not in self.value:
            raise self.fail(name, "an object")
        return _Reader(self.value[name], f"{self.where}.{name}" if self.where else name)

    def text(self, name: str) -> str:
        value = self.get(name)
        # The text must be printable: control characters and halves of surrogate pairs can be neither drawn nor saved.
        if not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable():
            raise self.fail(name, f"a text of at most {MAX_TEXT} printable characters")
        return value

    def choice(self, name: str, choices: Tuple[str, ...]) -> str:
        value = self.get(name)
        if not isinstance(value, str) or value not in choices:
            raise self.fail(name, "one of " + ", ".join(choices))
        return value

    def flag(self, name: str) -> bool:
        value = self.get(name)
        if not isinstance(value, bool):
            raise self.fail(name, "true or false")
        return value

    def count(self, name: str, low: int = 1, high: int = MAX_SIZE) -> int:
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(name, f"a whole number from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float) -> float:
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise self.fail(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def optional_number(self, name: str, low: float, high: float) -> Optional[float]:
        return None if self.get(name) is None else self.number(name, low, high)


def _point(value: Any, where: str) -> Point:
    r = _Reader(value, where)
    contestant = r.get("contestant")
    if not isinstance(contestant, str) or not NAME.fullmatch(contestant):
        raise r.fail("contestant", "a name of at most 40 letters, digits and . _ + -, beginning with a letter or digit")
    problem = Problem(
        device=r.choice("device", DEVICES), direction=r.choice("direction", DIRECTIONS),
        dtype=r.choice("dtype", tuple(ELEMENT_BYTES)), batch=r.count("batch"), heads_q=r.count("heads_q"),
        heads_k=r.count("heads_k"), len_q=r.count("len_q"), len_k=r.count("len_k"), head_dim=r.count("head_dim"),
        head_dim_v=r.count("head_dim_v"), causal=r.flag("causal"), page_size=r.count("page_size", low=0))
    if problem.heads_q % problem.heads_k != 0:
        raise r.fail("heads_q", f"a multiple of heads_k, which is {problem.heads_k}")
    ms, ms_low, ms_high = (r.number(name, *MS) for name in ("ms", "ms_low", "ms_high"))
    if ms_low > ms:
        raise r.fail("ms_low", f"at most ms, which is {ms:g}")
    if ms_high < ms:
        raise r.fail("ms_high", f"at least ms, which is {ms:g}")
    decodes = problem.direction == "decode"
    return Point(
        contestant, problem, ms, ms_low, ms_high,
        tflops=r.optional_number("tflops", *RATE) if decodes else r.number("tflops", *RATE),
        gbs=r.number("gbs", *RATE) if decodes else r.optional_number("gbs", *RATE),
        share=r.optional_number("share", 0, 1000), clock_mhz=r.optional_number("clock_mhz", 1, 1e6),
        extra_bytes=None if r.get("extra_bytes") is None else r.count("extra_bytes", 0, MAX_BYTES))


def _ceilings(r: _Reader) -> Dict[str, Dict[str, float]]:
    found = {}
    for device in r.value:
        if device not in DEVICES:
            raise ResultsError(f"{r.where}: has a member {_shown(device)}, may have {' and '.join(DEVICES)}")
        measured = r.inside(device)
        # Ceilings that only a later version measures are not drawn.
        found[device] = {name: measured.number(name, *RATE) for name in measured.value if CEILING.fullmatch(name)}
    return found


def _run(value: Any, path: str) -> Run:
    r = _Reader(value, "")
    if r.get("format") != FORMAT:
        raise r.fail("format", f'"{FORMAT}": this is no results file of cuflash bench, or one of another version')
    machine = r.inside("machine")
    results = r.get("results")
    if not isinstance(results, list) or not 1 <= len(results) <= MAX_RESULTS:
        raise ResultsError(f"results: must be an array of 1 to {MAX_RESULTS} objects"
                           + (f", and has {len(results)}" if isinstance(results, list) else ""))
    return Run(
        path, r.text("command"), r.text("version"), r.text("date"), machine.text("cpu"), machine.count("threads"),
        None if machine.get("gpu") is None else machine.text("gpu"), _ceilings(r.inside("ceilings")),
        [_point(result, f"results[{n}]") for n, result in enumerate(results)])


def _refuse_constant(text: str) -> Any:
    raise ResultsError(f"holds {text}, which is not a number of JSON; leave the member out or make it null")


def _without_repetition(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    value: Dict[str, Any] = {}
    for name, member in pairs:
        if name in value:
            raise ResultsError(f"an object has the member {_shown(name)} twice")
        value[name] = member
    return value


def read(path: str) -> Run:
    """Reads the file at this path; raises ResultsError if it is invalid."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror}") from None
    name = Path(path).name
    try:
        if len(data) > MAX_FILE_BYTES:
            raise ResultsError(f"is larger than {MAX_FILE_BYTES >> 20} MiB, the most that is read")
        try:
            value = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant,
                               object_pairs_hook=_without_repetition)
        except UnicodeDecodeError as error:
            raise ResultsError(f"is not UTF-8: byte {error.start}") from None
        except RecursionError:
            raise ResultsError("is nested too deeply for a results file") from None
        except ValueError as error:
            raise ResultsError(f"is not JSON: {error}") from None
        return _run(value, name)
    except ResultsError as error:
        raise ResultsError(f"{path}: {error}") from None
