"""The look of pictures: each contestant has the same colour and marker in all of them."""

from __future__ import annotations

import textwrap
from typing import Any, Dict, Iterable, List, Tuple

from .scene import OURS

PAPER, INK, QUIET, GRID = "#ffffff", "#1b1f24", "#5c6570", "#e3e6ea"
# The colour of text on a coloured background, which does not change on dark paper.
DARK_ON_COLOUR, LIGHT_ON_COLOUR = "#010101", "#fefefe"
# Colours that a report replaces for readers who prefer dark.
ON_DARK = {PAPER: "#15181c", INK: "#e8eaed", QUIET: "#a2abb5", GRID: "#30363d"}

# Okabe and Ito's colours, which people with any kind of colour vision can tell apart, without black and yellow, which
# are invisible on dark or on light paper.
KNOWN: Dict[str, Tuple[str, str]] = {
    OURS: ("#0072b2", "o"),
    "naive": ("#808890", "p"),
    "torch-math": ("#d55e00", "v"),
    "torch-efficient": ("#cc79a7", "D"),
    "torch-flash": ("#e69f00", "^"),
    "torch-cudnn": ("#009e73", "s"),
    "fa3": ("#a65628", "<"),
    "fa4": ("#7b5ea7", ">"),
}
OTHERS: List[Tuple[str, str]] = [("#56b4e9", "h"), ("#999933", "d"), ("#b2182b", "P"), ("#40b0a6", "X")]
DIVERGING = "PuOr"  # orange below, purple above: safe for colour-blind readers

TITLE_LETTERS = 12  # letters of a title per inch
OLDEST = (3, 7)  # the first matplotlib with legends outside of panels

SETTINGS: Dict[str, Any] = {
    "figure.facecolor": PAPER, "savefig.facecolor": PAPER, "axes.facecolor": PAPER,
    "text.color": INK, "axes.labelcolor": INK, "axes.titlecolor": INK, "axes.edgecolor": QUIET,
    "xtick.color": QUIET, "ytick.color": QUIET, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "axes.grid": True, "grid.color": GRID, "grid.linewidth": 0.8, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8,
    "font.family": ["DejaVu Sans"], "font.size": 9, "axes.titlesize": 9.5, "axes.labelsize": 9,
    "xtick.labelsize": 8.5, "ytick.labelsize": 8.5, "legend.fontsize": 9, "legend.frameon": False,
    "lines.linewidth": 1.8, "lines.markersize": 5, "figure.constrained_layout.use": True,
    "text.parse_math": False,  # names come from files: a dollar is a dollar
    "svg.fonttype": "path", "svg.hashsalt": "cuflash", "savefig.dpi": 160,
}


class MissingMatplotlib(Exception):
    """Raised if matplotlib is missing or too old; the message says how to get it."""


def matplotlib() -> Any:
    """The module matplotlib, which only this subpackage needs."""
    try:
        import matplotlib as module
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingMatplotlib(f"pictures need matplotlib ({error}): pip install matplotlib") from None
    if module.__version_info__[:2] < OLDEST:
        raise MissingMatplotlib(f"pictures need matplotlib {OLDEST[0]}.{OLDEST[1]} or newer, and this is "
                                f"{module.__version__}: pip install --upgrade matplotlib")
    return module


def in_style() -> Any:
    """A context with our settings, independent of the user's matplotlib settings."""
    module = matplotlib()
    return module.rc_context({**module.rcParamsDefault, "backend": module.rcParams["backend"], **SETTINGS})


class Palette:
    """Colours and markers of all contestants of a report; cuflash is the first."""

    def __init__(self, contestants: Iterable[str]):
        names = set(contestants)
        others = sorted(names - set(KNOWN))
        self.looks = {**KNOWN, **{name: OTHERS[n % len(OTHERS)] for n, name in enumerate(others)}}
        self.order = [name for name in [*KNOWN, *others] if name in names]

    def color(self, contestant: str) -> str:
        return self.looks[contestant][0]

    def marker(self, contestant: str) -> str:
        return self.looks[contestant][1]

    def sorted(self, contestants: Iterable[str]) -> List[str]:
        return sorted(set(contestants), key=self.order.index)


def set_title(figure: Any, words: str) -> None:
    """Sets a title at the left, wrapped to the width of the figure."""
    width = int(TITLE_LETTERS * figure.get_size_inches()[0])
    figure.suptitle(textwrap.fill(words, width), x=0.01, ha="left", fontsize=11, color=INK)


def legend(figure: Any, palette: Palette, contestants: List[str]) -> None:
    """Places a legend next to the panels if labels at the ends of lines do not suffice."""
    line = matplotlib().lines.Line2D
    handles = [line([], [], color=palette.color(name), marker=palette.marker(name), markeredgecolor=PAPER, markersize=7)
               for name in contestants]
    figure.legend(handles, contestants, loc="outside right upper")
