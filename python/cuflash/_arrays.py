"""What every implementation shares: array libraries and gradients by name. Imports nothing of the package."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional

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
