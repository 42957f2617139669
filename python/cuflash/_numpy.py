"""Attention for NumPy arrays on the CPU and CuPy arrays on a GPU: checks and converts arguments, allocates results."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable, ContextManager, List, Mapping, NamedTuple, Optional

from . import _core
from ._arrays import Array, Gradients, MaskSummary, kind_of, library_of
from ._options import ARRAYS, EXECUTION, OPTIONS, PACKED_ONLY, checker, keywords, require_known
from ._values import flag, shown


class Device(NamedTuple):
    """The device of a call."""

    xp: Any  # the module that creates arrays: numpy or cupy
    stream: int
    allocate: Optional[Callable[[int], Array]]
    guard: ContextManager[Any]


def device_of(q: Array) -> Device:
    xp = sys.modules[library_of(q)]
    if xp.__name__ == "numpy":
        return Device(xp, 0, None, contextlib.nullcontext())
    stream = xp.cuda.get_current_stream(q.device.id).ptr
    return Device(xp, stream, lambda size: xp.empty(size, xp.uint8), q.device)


def require_array(xp: Any, array: Array, name: str, like: str = "q") -> None:
    if not isinstance(array, xp.ndarray):
        raise TypeError(f"{name}: {kind_of(array)} is not a {xp.__name__} array, as {like} is")


def readable(xp: Any, array: Array, name: str, like: str = "q") -> Array:
    """The array itself if the library can read it in place, otherwise a contiguous copy."""
    require_array(xp, array, name, like)
    size = array.itemsize
    in_place = all(n <= 1 or (s >= 0 and s % size == 0) for n, s in zip(array.shape, array.strides))
    in_place = in_place and (array.shape[-1:] <= (1,) or array.strides[-1] == size)
    return array if in_place and getattr(array.flags, "aligned", True) else xp.array(array, order="C", copy=True)


def _scores(xp: Any, array: Optional[Array], keys: int, name: str) -> Optional[Array]:
    """A bias or mask [..., Sk] as [B or 1, Hq or 1, Sq or 1, Sk]; a summary of a mask as its words."""
    if array is None:
        return None
    if isinstance(array, MaskSummary):
        require_array(xp, array.words, name)
        return array.words_for(keys)
    require_array(xp, array, name)
    if array.ndim > 4:
        raise ValueError(f"{name}: has {array.ndim} dimensions; it must broadcast to [batch, heads, queries, keys]")
    array = array[(None,) * (4 - array.ndim)]
    if array.shape[-1] == 1:
        array = xp.broadcast_to(array, (*array.shape[:-1], keys))
    return readable(xp, array, name)


def integers(xp: Any, numbers: Any, name: str, what: str = "numbers", lowest: int = -(2**31)) -> Optional[Array]:
    """The numbers as contiguous int32; None stays None."""
    if numbers is None:
        return None
    try:
        array = xp.asarray(numbers)
    except Exception:  # for example, nested lists of different lengths
        array = None
    if array is None or array.dtype.kind not in "iufb":
        raise TypeError(f"{name}: got {shown(numbers)}, must be an array or a list of integers")
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"{name}: has elements of {array.dtype}; {what} are integers")
    if array.dtype != xp.int32 and xp.__name__ != "numpy":  # checking the values would synchronize
        raise ValueError(f"{name}: has elements of {array.dtype}; on a device {what} are int32")
    if xp.__name__ == "numpy" and array.size and (array.min() < lowest or array.max() >= 2**31):
        raise ValueError(f"{name}: {numbers} has one that is not between {lowest} and {2**31 - 1}")
    return xp.ascontiguousarray(array, dtype=xp.int32)


def slopes_of(xp: Any, slopes: Any) -> Optional[Array]:
    """alibi_slopes as contiguous float32; None stays None."""
    if slopes is None:
        return None
    try:
        return xp.ascontiguousarray(slopes, dtype=xp.float32)
    except Exception:
        raise TypeError(f"alibi_slopes: got {shown(slopes)}, must be an array or a list of numbers") from None


def lengths_of(xp: Any, lengths: Any, name: str) -> Optional[Array]:
    return integers(xp, lengths, name, "lengths", 0)


def lse_type(xp: Any, rows: Array) -> Any:
    return xp.float64 if rows.dtype == xp.float64 else xp.float32


_KEYWORDS = {name: default for name, default in keywords(ARRAYS, (*OPTIONS, *EXECUTION)).items()
             if name not in PACKED_ONLY}
_checked = checker((*OPTIONS, *EXECUTION))


class Call:
    """One call in the form that `_core` takes: arrays of four dimensions, and every option in its order.

    given: keyword arguments of cuflash.attention."""

    def __init__(self, q: Array, k: Array, v: Array, given: Mapping[str, Any]) -> None:
        self.device = device_of(q)
        xp = self.xp = self.device.xp
        get = given.get
        options = _checked(given)
        if get("dropout_seed") is None and options["dropout_p"]:
            raise ValueError("dropout_seed: is needed with dropout_p; attention_backward must be given the same")
        self.q, self.k, self.v = readable(xp, q, "q"), readable(xp, k, "k"), readable(xp, v, "v")
        self.given_bias: Any = get("bias")
        self.bias = _scores(xp, self.given_bias, self.k.shape[2], "bias")
        sink = get("sink")
        self.sink = None if sink is None else readable(xp, sink, "sink")
        arrays = {
            "alibi_slopes": slopes_of(xp, get("alibi_slopes")),
            "bias": self.bias,
            "mask": _scores(xp, get("mask"), self.k.shape[2], "mask"),
            "sink": self.sink,
            "cu_seqlens_q": None,
            "cu_seqlens_k": None,
            "seqlens_q": lengths_of(xp, get("seqlens_q"), "seqlens_q"),
            "seqlens_k": lengths_of(xp, get("seqlens_k"), "seqlens_k"),
        }
        *values, num_threads, deterministic = options.values()
        self.options: List[Any] = [
            *[arrays[name] for name in ARRAYS],
            *values,
            self.device.stream,
            self.device.allocate,
            num_threads,
            False,  # check_lengths
            deterministic,
        ]
        self.return_lse = flag(get("return_lse"), "return_lse")

    def empty_out(self) -> Array:
        return self.xp.empty((*self.q.shape[:3], self.v.shape[3]), self.q.dtype)

    def empty_lse(self) -> Array:
        return self.xp.empty(self.q.shape[:3], lse_type(self.xp, self.q))

    def empty_gradients(self) -> Gradients:
        shapes = (self.q, self.k, self.v, self.bias, self.sink)
        return Gradients(*(None if x is None else self.xp.empty(x.shape, x.dtype) for x in shapes))

    def as_bias(self, dbias: Array) -> Array:
        """The gradient in the shape of the given bias; a bias with one column for all keys gets the sum over keys."""
        if self.given_bias.shape[-1] != dbias.shape[-1]:
            dbias = dbias.astype(self.xp.float64).sum(axis=-1, keepdims=True).astype(dbias.dtype)
        return dbias.reshape(self.given_bias.shape)


def attention(q: Array, k: Array, v: Array, **options: Any) -> Any:
    """cuflash.attention for NumPy and CuPy arrays."""
    call = Call(q, k, v, options)
    with call.device.guard:
        out = call.empty_out()
        lse = call.empty_lse() if call.return_lse else None
        _core.forward(call.q, call.k, call.v, out, lse, *call.options)
    return (out, lse) if call.return_lse else out


def attention_backward(
    dout: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, *, dlse: Optional[Array] = None, **options: Any
) -> Gradients:
    """cuflash.attention_backward for NumPy and CuPy arrays."""
    require_known(options, _KEYWORDS, "attention_backward")
    call = Call(q, k, v, options)
    with call.device.guard:
        g = call.empty_gradients()
        _core.backward(
            call.q,
            call.k,
            call.v,
            readable(call.xp, out, "out"),
            readable(call.xp, lse, "lse"),
            readable(call.xp, dout, "dout"),
            None if dlse is None else readable(call.xp, dlse, "dlse"),
            *g,
            *call.options,
        )
        return g if g.dbias is None else g._replace(dbias=call.as_bias(g.dbias))


def explain(q: Array, k: Array, v: Array, *, backward: bool = False, **options: Any) -> str:
    """cuflash.explain for NumPy and CuPy arrays."""
    require_known(options, _KEYWORDS, "explain")
    call = Call(q, k, v, options)
    with call.device.guard:
        out, lse = call.empty_out(), call.empty_lse()
        if flag(backward, "backward"):
            gradients = call.empty_gradients()
            dout = call.empty_out()
            return _core.explain_backward(call.q, call.k, call.v, out, lse, dout, None, *gradients, *call.options)
        return _core.explain_forward(call.q, call.k, call.v, out, lse if call.return_lse else None, *call.options)
