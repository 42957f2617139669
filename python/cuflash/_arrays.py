"""Shared by every implementation: array libraries, gradients by name, masks as summaries. Imports nothing else of the
package."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Tuple

# The root of a type's module -> the library.
_ROOTS = {"numpy": "numpy", "cupy": "cupy", "torch": "torch", "jax": "jax", "jaxlib": "jax"}
_library_of_type: Dict[type, str] = {}  # a cache of the answers

Array = Any  # of NumPy, PyTorch, JAX or CuPy; all arrays of a call come from one library


class Gradients(NamedTuple):
    """Gradients by name, each with the shape and type of its array; None if that array was not given."""

    dq: Array
    dk: Array
    dv: Array
    dbias: Optional[Array]
    dsink: Optional[Array]


class MaskSummary:
    """The summary of a mask, made by summarize_mask; attention takes it as `mask`.

    words: an int32 array of the library of the mask, with one bit for each pair of a query and a key.
    shape: of the mask, [B or 1, Hq or 1, Sq or 1, Sk].
    """

    __slots__ = ("words", "shape")

    def __init__(self, words: Array, shape: Tuple[int, int, int, int]) -> None:
        self.words, self.shape = words, shape

    def __repr__(self) -> str:
        return f"MaskSummary(shape={self.shape})"

    def words_for(self, keys: int) -> Array:
        if keys != self.shape[3]:
            raise ValueError(f"mask: is the summary of a mask {list(self.shape)}, but the call has {keys} keys")
        return self.words


def kind_of(array: Any) -> str:
    return "None" if array is None else type(array).__name__


def library_of(array: Array, name: str = "q") -> str:
    """ "numpy", "cupy", "torch" or "jax": the library that defines the type of array."""
    known = _library_of_type.get(type(array))
    if known is not None:
        return known
    for kind in type(array).__mro__:
        root = kind.__module__.partition(".")[0]
        if root in _ROOTS:
            _library_of_type[type(array)] = _ROOTS[root]
            return _ROOTS[root]
    raise TypeError(
        f"{name}: {kind_of(array)} is not an array of NumPy, PyTorch, JAX or CuPy; "
        "numpy.asarray or numpy.from_dlpack makes one of lists and of other libraries' arrays"
    )
