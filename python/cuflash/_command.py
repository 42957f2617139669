"""The command `cuflash` that `pip install` puts into PATH.

It offers what the package can do by itself. A package built with the whole tool, which is compiled C++, runs that
instead: `pip install . -C cmake.define.CUFLASH_BUILD_CLI=ON`.
"""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path
from typing import Callable, Dict, List, Optional

WHOLE_TOOL = Path(__file__).with_name("bin") / "cuflash"
OF_WHOLE_TOOL = ("attend", "cache", "demo", "explain", "io", "memory", "pack", "support", "tune")
HOW_TO_GET_IT = ("`make build` in a clone makes build/release/bin/cuflash, and `pip install . -C "
                 "cmake.define.CUFLASH_BUILD_CLI=ON` builds it into this package; both need CLI11 (libcli11-dev)")


def _info(words: List[str]) -> int:
    from . import info
    from ._flags import FlagParser

    about = "Describes this build and what it finds on this machine."
    FlagParser(prog="cuflash info", description=about).parse_args(words)
    try:
        print(info(), end="")
    except RuntimeError as error:  # an invalid setting in the environment
        print(f"cuflash: {error}", file=sys.stderr)
        return 2
    return 0


def _check(words: List[str]) -> int:
    from .__main__ import main as check

    return check(words, "cuflash check")


def _bench(words: List[str]) -> int:
    from .bench.__main__ import main as bench

    return bench(words)


def _plot(words: List[str]) -> int:
    from .plot.command import main as plot

    return plot(words)


COMMANDS: Dict[str, Callable[[List[str]], int]] = {"info": _info, "check": _check, "bench": _bench, "plot": _plot}
HELP = f"""usage: cuflash COMMAND [--help] ...

  info     describes this build and what it finds on this machine
  check    does the same and checks results against float64 NumPy, like python -m cuflash
  bench    compares cuflash with PyTorch's attention over a grid of problems; needs PyTorch
  plot     draws the results of bench; needs matplotlib

This is the command of the Python package. {', '.join(OF_WHOLE_TOOL[:-1])} and {OF_WHOLE_TOOL[-1]} are
commands of the whole tool: {HOW_TO_GET_IT}.
"""


def _version() -> int:
    from . import __version__

    print(f"cuflash {__version__}")
    return 0


def _refuse(name: str) -> int:
    if name in OF_WHOLE_TOOL:
        sentence = f"{name} is a command of the whole tool, which this package was built without: {HOW_TO_GET_IT}"
    else:
        near = difflib.get_close_matches(name, [*COMMANDS, *OF_WHOLE_TOOL], 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        sentence = f"there is no command {name!r}{hint} (cuflash --help lists them)"
    print(f"cuflash: {sentence}", file=sys.stderr)
    return 2


def run(words: List[str]) -> int:
    if os.access(WHOLE_TOOL, os.X_OK):
        os.execv(WHOLE_TOOL, ["cuflash", *words])
    if not words or words[0] in ("--help", "-h", "help"):
        print(HELP, end="", file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] == "--version":
        return _version()
    return COMMANDS[words[0]](words[1:]) if words[0] in COMMANDS else _refuse(words[0])


def main(words: Optional[List[str]] = None) -> int:
    """The exit code: 0; 1 if a job ran and failed; 2 if it could not start."""
    try:
        return run(sys.argv[1:] if words is None else words)
    except ValueError as error:  # the library's, about a setting in the environment
        print(f"cuflash: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"cuflash: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
