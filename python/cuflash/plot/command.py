"""Draws the results files of `cuflash bench`: speed and memory by length, ratios, rooflines, decode; and a report."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from .._atomic_file import write_atomically
from .._flags import FlagParser
from . import charts
from .picture import Picture
from .ratios import ratios
from .report import report
from .results import ResultsError, read
from .roofline import rooflines
from .scene import Scene, scenes_of
from .style import MissingMatplotlib, Palette, matplotlib

FORMATS = ("png", "svg")
MOST_PICTURES = 200


def pictures_of(scene: Scene, palette: Palette) -> List[Picture]:
    kinds = (charts.speed, ratios, charts.memory, charts.decode, rooflines)
    return [picture for kind in kinds for picture in kind(scene, palette)]


def write(path: Path, data: bytes) -> None:
    """Writes the file atomically; raises ResultsError if it cannot be written."""
    try:
        write_atomically(path, data)
    except OSError as error:
        raise ResultsError(f"{path}: cannot be written: {error.strerror}") from None


def _formats(argument: str) -> List[str]:
    names = argument.split(",")
    if not set(names) <= set(FORMATS):
        raise argparse.ArgumentTypeError(f"got {argument!r}, must be {', '.join(FORMATS)} or both with a comma")
    return list(dict.fromkeys(names))


def arguments(words: Optional[List[str]]) -> argparse.Namespace:
    parser = FlagParser(prog="python -m cuflash.plot", description=__doc__)
    parser.add_argument("results", nargs="+", metavar="RESULTS.json", help="files that cuflash bench wrote with --json")
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="a folder for pictures; created if missing")
    parser.add_argument("--format", metavar="png,svg", type=_formats, default=list(FORMATS), help="default: both")
    parser.add_argument("--html", metavar="FILE", type=Path, help="a report in one file, which needs no network")
    options = parser.parse_args(words)
    if options.output is None and options.html is None:
        parser.error("nothing to write: give a folder for pictures (-o DIR), a report (--html FILE), or both")
    return options


def run(options: argparse.Namespace) -> None:
    runs = [read(path) for path in options.results]
    matplotlib()
    scenes = scenes_of(runs)
    palette = Palette(name for scene in scenes for name, _ in scene.points)
    planned = {scene.name: pictures_of(scene, palette) for scene in scenes}
    count = sum(len(pictures) for pictures in planned.values())
    if count > MOST_PICTURES:
        raise ResultsError(f"these results make {count} pictures, and at most {MOST_PICTURES} are drawn: give fewer "
                           "files, or measure fewer kinds of problems in each")
    if options.output is not None:
        try:
            options.output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResultsError(f"{options.output}: cannot be made a folder: {error.strerror}") from None
    kept = _draw(planned, options)
    if options.output is not None:
        print(f"{count} picture{'s' if count > 1 else ''} as {' and '.join(options.format)} in {options.output}")
    if options.html is not None:
        write(options.html, report(runs, scenes, kept, palette).encode("utf-8"))
        print(f"report: {options.html}")


def _draw(planned: Dict[str, List[Picture]], options: argparse.Namespace) -> Dict[str, List[Tuple[Picture, bytes]]]:
    """Writes pictures, and returns those that the report needs."""
    kept: Dict[str, List[Tuple[Picture, bytes]]] = {name: [] for name in planned}
    filed = options.format if options.output is not None else []
    formats = list(dict.fromkeys([*filed, *(["svg"] if options.html is not None else [])]))
    for name, pictures in planned.items():
        for picture in pictures:
            saved = dict(zip(formats, picture.save(formats)))
            for format in filed:
                write(options.output / f"{picture.name}.{format}", saved[format])
            if options.html is not None:
                kept[name].append((picture, saved["svg"]))
    return kept


def main(words: Optional[List[str]] = None) -> int:
    """Runs the command with these arguments, or those of the process, and returns the exit code."""
    options = arguments(words)
    try:
        run(options)
    except (ResultsError, MissingMatplotlib) as error:
        print(f"cuflash.plot: {error}", file=sys.stderr)
        return 1
    return 0
