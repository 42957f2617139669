"""Command lines of the package: one sentence for each mistake, with the flag that was probably meant."""

from __future__ import annotations

import argparse
import difflib
import sys
from typing import Any, NoReturn, Optional


class FlagParser(argparse.ArgumentParser):
    """An ArgumentParser without abbreviations whose errors are one line."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(allow_abbrev=False, **arguments)

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}", file=sys.stderr)
        sys.exit(2)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            name = unknown[0].partition("=")[0]
            meant = self._nearest(name)
            hint = f"did you mean {meant!r}?" if meant else f"{self.prog} --help lists its flags"
            self.error(f"unknown flag {name!r}; {hint}")
        return options

    def _nearest(self, word: str) -> Optional[str]:
        """The flag with the most similar name; else the longest one whose name is a part of the word."""
        known = {name.lstrip("-"): name for action in self._actions for name in action.option_strings}
        wanted = word.lstrip("-")
        near = difflib.get_close_matches(wanted, known, 1, 0.7)
        parts = sorted((name for name in known if len(name) >= 3 and name in wanted), key=len)
        return known[near[0]] if near else known[parts[-1]] if parts else None
