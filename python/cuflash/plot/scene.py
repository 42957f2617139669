"""The results about one device of one machine."""

from __future__ import annotations

from typing import Dict, Iterable, List, NamedTuple, Tuple

from .problem import Problem
from .results import Point, Run

OURS = "cuflash"


class Scene(NamedTuple):
    """Points of all files by contestant and problem; if files repeat a point, the last one counts."""

    device: str
    machine: str
    number: int  # counts the machines with such a device
    points: Dict[Tuple[str, Problem], Point]
    ratios: Dict[Tuple[str, Problem], float]  # their time / cuflash's time, both from one file
    ceilings: Dict[str, float]  # the highest measured values

    @property
    def name(self) -> str:
        return self.device if self.number == 1 else f"{self.device}{self.number}"

    @property
    def words(self) -> str:
        """The machine, short enough for a title."""
        return self.machine if len(self.machine) <= 60 else self.machine[:57] + "..."

    def of(self, *directions: str) -> Dict[Tuple[str, str], List[Point]]:
        """Points by direction and type."""
        found: Dict[Tuple[str, str], List[Point]] = {}
        for point in self.points.values():
            if point.problem.direction in directions:
                found.setdefault((point.problem.direction, point.problem.dtype), []).append(point)
        return {key: found[key] for key in sorted(found, key=lambda key: (directions.index(key[0]), key[1]))}


def _ratios(run: Run, device: str) -> Iterable[Tuple[Tuple[str, Problem], float]]:
    ours = {point.problem: point.ms for point in run.points if point.contestant == OURS}
    for point in run.points:
        problem = point.problem
        if problem.device == device and point.contestant != OURS and problem in ours:
            yield (point.contestant, problem), point.ms / ours[problem]


def scenes_of(runs: List[Run]) -> List[Scene]:
    """A scene for each device of each machine, in the order of the files."""
    scenes: Dict[Tuple[str, str], Scene] = {}
    numbers: Dict[str, int] = {}
    for run in runs:
        for device in sorted({point.problem.device for point in run.points}, reverse=True):
            key = (device, run.machine(device))
            if key not in scenes:
                numbers[device] = numbers.get(device, 0) + 1
                scenes[key] = Scene(device, key[1], numbers[device], {}, {}, {})
            scene = scenes[key]
            scene.points.update({(p.contestant, p.problem): p for p in run.points if p.problem.device == device})
            scene.ratios.update(_ratios(run, device))
            for name, value in run.ceilings.get(device, {}).items():
                scene.ceilings[name] = max(value, scene.ceilings.get(name, 0.0))
    return list(scenes.values())
