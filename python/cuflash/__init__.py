"""Exact attention that never stores the score matrix."""

from . import _core

__version__ = _core.version()
