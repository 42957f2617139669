"""A picture with its words and figures."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, Callable, List

from .style import in_style


# Metadata that would differ from day to day or from version to version.
DATED = {"svg": ("Date", "Creator"), "png": ("Software",)}


@dataclass(frozen=True)
class Table:
    """The figures of a picture."""

    headers: List[str]
    rows: List[List[str]]


@dataclass(frozen=True)
class Picture:
    """A picture that is painted only when it is needed, because matplotlib's figures are large."""

    name: str  # of its files, without the extension
    title: str
    caption: str
    table: Table
    paint: Callable[[], Any]

    def save(self, formats: List[str]) -> List[bytes]:
        """The picture in each format; the same picture gives the same bytes."""
        saved = []
        with in_style():
            figure = self.paint()
            for format in formats:
                stream = io.BytesIO()
                figure.savefig(stream, format=format, metadata=dict.fromkeys(DATED[format]))
                saved.append(stream.getvalue())
        return saved
