"""Checks of the values of options: each returns what the library takes, or raises in the caller's terms."""

from __future__ import annotations

import operator
from typing import Any, Optional, Tuple

LARGEST = 2**63 - 1
"""Sizes are 64-bit in the library."""
LARGEST_EXTENT = 2**31 - 1
"""The limit of one dimension, and of every count of rows, threads or splits."""
LARGEST_SEED = 2**64 - 1


def shown(value: Any) -> str:
    """The value as the caller wrote it if that is short, otherwise its type."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"a value of type {type(value).__name__}"


def whole(value: Any, name: str, lowest: int = -LARGEST, highest: int = LARGEST) -> int:
    """An int. Accepts NumPy's integers and arrays of one; rejects floats and strings."""
    if not isinstance(value, int):
        if type(value).__name__ == "SymInt":  # from PyTorch's tracers: it has no value yet
            return value
        try:
            value = operator.index(value)
        except Exception:
            raise TypeError(f"{name}: got {shown(value)}, must be a whole number") from None
    if not lowest <= value <= highest:
        raise ValueError(f"{name}: got {value}, must be a whole number from {_power(lowest)} to {_power(highest)}")
    return int(value)


def _power(value: int) -> str:
    return {LARGEST: "2**63 - 1", -LARGEST: "-(2**63 - 1)", LARGEST_SEED: "2**64 - 1"}.get(value, str(value))


def count(value: Any, name: str) -> int:
    """A number of rows, threads or splits; 0 leaves the choice to the library."""
    return whole(value, name, 0, LARGEST_EXTENT)


def seed(value: Any, name: str) -> int:
    """64 bits; None is 0."""
    return 0 if value is None else whole(value, name, 0, LARGEST_SEED)


def number(value: Any, name: str) -> float:
    """A float that is not NaN. Accepts NumPy's numbers and arrays of one; rejects strings."""
    if type(value).__name__ == "SymFloat":
        return value
    try:
        if value is None or isinstance(value, (str, bytes)):
            raise TypeError
        result = float(value)
    except Exception:
        raise TypeError(f"{name}: got {shown(value)}, must be a number") from None
    if result != result:
        raise ValueError(f"{name}: got nan, must be a number")
    return result


def optional_number(value: Any, name: str) -> Optional[float]:
    return None if value is None else number(value, name)


def flag(value: Any, name: str) -> bool:
    """True or False. None is False; numbers with one truth value, such as 1 or NumPy's, are accepted."""
    try:
        if value is None or isinstance(value, (bool, int)) or getattr(value, "ndim", None) == 0:
            return bool(value)
    except Exception:
        pass
    raise TypeError(f"{name}: got {shown(value)}, must be True or False")


def pair(value: Any, name: str) -> Tuple[int, int]:
    """(left, right) of a window."""
    try:
        left, right = () if isinstance(value, (str, bytes, dict, set)) else value
        left, right = whole(left, name), whole(right, name)
    except (TypeError, ValueError):
        left, right = -2, -2
    if left < -1 or right < -1:
        raise (ValueError if _is_pair(value) else TypeError)(
            f"{name}: got {shown(value)}, must be two whole numbers (left, right), each -1 (unbounded) or more, "
            "such as (3, 0)")
    return left, right


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(x, int) for x in value)


def layout(value: Any, allowed: Tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"layout: got {shown(value)}, must be {' or '.join(map(repr, allowed))}")
    return value
