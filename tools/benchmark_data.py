"""Reads docs/data into the form that the tables and charts of the docs need."""

import hashlib
import json
import math
from pathlib import Path
from typing import NamedTuple, Optional

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "data"
# The first file that exists: bench/peers_cuda.py writes one, `python -m cuflash.bench` wrote the other.
DENSE = ("h200_peers.json", "h200_torch.json")
WORLD = "h200_world.json"  # by bench/world.py
WORLD_REST = "h200_world_rest.json"  # cases of an earlier run of it, which the last one did not reach
FEW_QUERIES = "h200_few_queries.json"  # by bench/few_queries.py
DOCUMENTS = "h200_documents.json"  # by bench/documents.py
NAMES = {"cuflash": "cuflash", "fa3": "FA3", "fa4": "FA4", "torch-cudnn": "cuDNN", "torch-flash": "FA2",
         "torch-flex": "Flex", "torch-efficient": "efficient", "torch-math": "unfused"}
PLAIN = "cuflash-plain"  # a contestant of bench/world.py: the problem without its options
PROBLEM = ("direction", "dtype", "batch", "heads_q", "heads_k", "len_q", "len_k", "head_dim", "causal", "page_size",
           "group", "variant")


class Table:
    """A file of format cuflash-table-1: rows as dictionaries, and their origin."""

    def __init__(self, name):
        self.name, content = name, json.loads((DATA / name).read_text())
        if content["format"] != "cuflash-table-1":
            raise ValueError(f"docs/data/{name}: format {content['format']}, must be cuflash-table-1")
        self.command, self.commit, self.date = content["command"], content["commit"], content["date"]
        self.machine = content["machine"]
        self.rows = [dict(zip(content["columns"], row, strict=True)) for row in content["rows"]]


class Bench:
    """A file of format cuflash-bench-1: the results of each contestant, by problem."""

    def __init__(self, name, content=None):
        self.name, content = name, content or json.loads((DATA / name).read_text())
        if content["format"] != "cuflash-bench-1":
            raise ValueError(f"docs/data/{name}: format {content['format']}, must be cuflash-bench-1")
        self.command, self.date = content["command"], content["date"][:10]
        self.commit, self.machine = content.get("commit", "unknown"), content["machine"]["gpu"]
        self.versions = content.get("versions", {})
        self.points, self.reasons = {}, content.get("not_measured", {})
        for result in [*content["results"], *content.get("variants", [])]:
            self.points.setdefault(key(result), {})[result["contestant"]] = result

    def peers(self, *groups):
        """The peers that have a result for a problem of these groups, in the order of NAMES."""
        found = {name for problem, by in self.points.items() if problem["group"] in groups for name in by}
        return [name for name in NAMES if name in found and name != "cuflash"]

    def group(self, *groups):
        return [(problem, by) for problem, by in self.points.items() if problem["group"] in groups]


class Problem(dict):
    """The fields of a problem as a hashable dictionary."""

    def __hash__(self):
        return hash(tuple(self.items()))


def key(result):
    defaults = {"group": result["direction"], "variant": ""}
    return Problem((name, result.get(name, defaults.get(name))) for name in PROBLEM)


def dense():
    return Bench(next(name for name in DENSE if (DATA / name).exists()))


def has_world():
    return (DATA / WORLD).exists()


def has_few_queries():
    return (DATA / FEW_QUERIES).exists()


def has_documents():
    return (DATA / DOCUMENTS).exists()


def has_peers():
    return (DATA / DENSE[0]).exists()


def ratio(by, peer):
    """The speed of cuflash relative to this contestant; None if either has no figure."""
    return by[peer]["ms"] / by["cuflash"]["ms"] if peer in by and "cuflash" in by else None


def best_peer(by):
    """The fastest contestant other than cuflash; None if there is none."""
    others = [name for name in by if name in NAMES and name != "cuflash"]
    return min(others, key=lambda name: by[name]["ms"]) if others else None


class Standing(NamedTuple):
    """A case of bench/world.py: the fastest peer, and the ratios to it and to the plain problem."""

    name: str
    direction: str
    ours: dict
    peer: Optional[str]
    theirs: Optional[dict]
    ratio: Optional[float]
    to_plain: Optional[float]


def standings(source):
    """The standings of all cases, worst first; cases without a peer come last."""
    found = []
    for problem, by in source.points.items():
        peer, ours = best_peer(by), by["cuflash"]
        to_plain = ours["tflops"] / by[PLAIN]["tflops"] if PLAIN in by else None
        found.append(Standing(problem["group"], problem["direction"], ours, peer, by.get(peer),
                              ratio(by, peer) if peer else None, to_plain))
    return sorted(found, key=lambda each: math.inf if each.ratio is None else each.ratio)


def mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def digest(*names):
    """The digest of the data files that a chart is drawn from."""
    text = b"".join((DATA / name).read_bytes() for name in names)
    return hashlib.sha256(text).hexdigest()[:16]
