"""Attention for JAX arrays: under jit, grad, vmap and remat, on the CPU and on CUDA.

The compiled program itself calls the library through XLA's foreign function interface: no callback into Python and no
copy. On CUDA the call runs on XLA's own stream with scratch memory from XLA's own allocator.

    import cuflash.jax

    out = jax.jit(lambda q, k, v: cuflash.jax.attention(q, k, v, causal=True))(q, k, v)
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Optional, Union

import jax
import jax.numpy as jnp
import numpy as np

from . import _core
from ._arrays import MaskSummary
from ._options import ARRAYS, EXECUTION, OPTIONAL_NUMBER, OPTIONS, checker
from ._values import flag, shown

__all__ = ["attention"]

_DIFFERENTIABLE = ("q", "k", "v", "bias", "sink")
_GRADIENT_OF = {name: "d" + name for name in _DIFFERENTIABLE}


def _register() -> None:
    if not hasattr(jax, "ffi"):
        raise ImportError(f"cuflash.jax needs jax 0.5 or newer for its foreign functions; this is {jax.__version__}")
    for platform, handlers in _core.xla_handlers().items():
        for name, handler in handlers.items():
            jax.ffi.register_ffi_target(name, handler, platform=platform)


_register()


_ALL_OPTIONS = (*OPTIONS, *EXECUTION)
_checked = checker(_ALL_OPTIONS)


@dataclasses.dataclass(frozen=True)
class _Options:
    """The options that are compiled into the program; hashable, so that jit can tell two calls apart."""

    values: tuple[Any, ...]  # in the order of _ALL_OPTIONS
    return_lse: bool

    @property
    def layout(self) -> str:
        return self.values[0]

    def attributes(self) -> dict[str, Any]:
        """The values as the handlers of the extension module read them: f64 and s64 scalars."""
        found = {}
        for option, value in zip(_ALL_OPTIONS, self.values):
            if option.kind is OPTIONAL_NUMBER:
                found["has_" + option.name] = np.int64(value is not None)
            if option.kind.attribute == "f64":
                found[option.name] = np.float64(value or 0.0)
            elif option.kind.attribute == "s64":
                found[option.name] = np.uint64(value % 2**64).astype(np.int64)  # seeds and -1 by their bits
        return found


def _call(direction: str, options: _Options, arguments: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
    """One call of the library. results: the shapes and dtypes of what it writes, by name."""
    described = [(name, str(x.dtype), tuple(x.shape)) for name, x in (*arguments.items(), *results.items())]
    attributes = options.attributes()
    _core.xla_check(direction, options.layout, described, {name: value.item() for name, value in attributes.items()})
    # expand_dims: vmap adds leading dimensions, of size 1 for an array that is shared; the handler loops over them.
    call = jax.ffi.ffi_call("cuflash_" + direction, list(results.values()), vmap_method="expand_dims")
    written = call(*arguments.values(), layout=options.layout, arguments=" ".join(arguments), results=" ".join(results),
                   **attributes)
    return dict(zip(results, written))


def _outputs(options: _Options, inputs: dict[str, Any], with_lse: bool) -> dict[str, jax.ShapeDtypeStruct]:
    q, v = inputs["q"], inputs["v"]
    shapes = {"out": jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), q.dtype)}
    if with_lse:
        first, second, third = {"bhsd": (0, 1, 2), "bshd": (0, 2, 1), "thd": (1, 0, None)}[options.layout]
        shape = tuple(q.shape[d] for d in (first, second, third) if d is not None)
        shapes["lse"] = jax.ShapeDtypeStruct(shape, jnp.float64 if q.dtype == jnp.float64 else jnp.float32)
    return shapes


def _forward(options: _Options, inputs: dict[str, Any], with_lse: bool) -> dict[str, Any]:
    return _call("forward", options, inputs, _outputs(options, inputs, with_lse))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(options: _Options, inputs: dict[str, Any]) -> tuple[Any, Any]:
    written = _forward(options, inputs, options.return_lse)
    return written["out"], written.get("lse")


def _attention_fwd(options: _Options, primals: dict[str, Any]) -> tuple[Any, Any]:
    inputs = {name: primal.value for name, primal in primals.items()}
    if "alibi_slopes" in primals and primals["alibi_slopes"].perturbed:
        raise ValueError("alibi_slopes: has no gradient; wrap it in jax.lax.stop_gradient, or pass a bias instead")
    # A dict with None for each name carries the names: a residual may have structure, but its values must be arrays.
    wanted = {name: None for name in _DIFFERENTIABLE if name in primals and primals[name].perturbed}
    written = _forward(options, inputs, with_lse=True)
    outputs = written["out"], (written["lse"] if options.return_lse else None)
    return outputs, (inputs, written["out"], written["lse"], wanted)


def _instantiate(cotangent: Any) -> Any:
    is_zero = isinstance(cotangent, jax.custom_derivatives.SymbolicZero)
    return jnp.zeros(cotangent.shape, cotangent.dtype) if is_zero else cotangent


def _attention_bwd(options: _Options, residuals: Any, cotangents: tuple[Any, Any]) -> tuple[dict[str, Any]]:
    inputs, out, lse, wanted = residuals
    dout, dlse = cotangents
    arguments = {**inputs, "out": out, "lse": lse, "dout": _instantiate(dout)}
    if dlse is not None and not isinstance(dlse, jax.custom_derivatives.SymbolicZero):
        arguments["dlse"] = dlse
    results = {_GRADIENT_OF[name]: jax.ShapeDtypeStruct(inputs[name].shape, inputs[name].dtype) for name in wanted}
    written = _call("backward", options, arguments, results) if results else {}
    return ({name: written.get(_GRADIENT_OF.get(name)) for name in inputs},)


_attention.defvjp(_attention_fwd, _attention_bwd, symbolic_zeros=True)


def _pairs(name: str, x: Any, len_k: int) -> Any:
    """bias or mask with rank 4 and a full last dimension, as the library reads them; the other dimensions may be 1."""
    if not 2 <= x.ndim <= 4:
        raise ValueError(f"{name}: rank {x.ndim}, must be 2 to 4: [batch or 1, heads or 1, queries or 1, keys]")
    x = x.reshape((1,) * (4 - x.ndim) + x.shape)
    return jnp.broadcast_to(x, (*x.shape[:3], len_k)) if x.shape[3] == 1 else x


def _array(name: str, x: Any) -> Any:
    try:
        return jnp.asarray(x)
    except Exception:
        raise TypeError(f"{name}: got {shown(x)}, must be an array") from None


def _slopes(slopes: Any, batch: int) -> Any:
    return jnp.broadcast_to(slopes, (batch, *slopes.shape)) if slopes.ndim == 1 else slopes


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    bias: Any = None,
    mask: Any = None,
    sink: Any = None,
    alibi_slopes: Any = None,
    seqlens_q: Any = None,
    seqlens_k: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    causal: bool = False,
    top_left: bool = False,
    window: tuple[int, int] = (-1, -1),
    scale: Optional[float] = None,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    dropout_seed: Optional[int] = None,
    dropout_offset: int = 0,
    layout: str = "bhsd",
    deterministic: bool = False,
    num_threads: int = 0,
    return_lse: bool = False,
) -> Union[jax.Array, tuple[jax.Array, jax.Array]]:
    """softmax(scale * q k^T + bias, masked) v, differentiable in q, k, v, bias, sink (and through lse).

    Args:
        q: [B, Hq, Sq, D]; with layout "bshd" [B, Sq, Hq, D]; with "thd" packed [Tq, Hq, D]. With "bhsd" the batch, or
            batch and heads, may be left out. float64, float32, float16 or bfloat16.
        k, v: [B, Hk, Sk, D] and [B, Hk, Sk, Dv], in the same layout. Hq is a multiple of Hk.
        bias: [B or 1, Hq or 1, Sq or 1, Sk], added to the scores; leading dimensions may be missing.
        mask: bool, shaped as bias; False hides a key.
        sink: [Hq], one logit per head that enters the softmax's denominator and has no value.
        alibi_slopes: float32 [Hq] or [B, Hq]; not differentiable.
        seqlens_q, seqlens_k: int32 [B], the rows of each sequence that exist.
        cu_seqlens_q, cu_seqlens_k: int32 [B + 1], layout "thd": sequence b is rows cu[b] to cu[b + 1].
        max_seqlen_q, max_seqlen_k: layout "thd" on CUDA: upper bounds of the lengths.
        causal: query i sees keys up to i + Sk - Sq; with top_left up to i.
        window: (left, right): how many keys before and after its own position a query sees; -1 is unbounded.
        scale: default 1/sqrt(D). softcap: 0 is off. Both are compiled in, as are all options that are not arrays.
        dropout_p: the probability of dropping a weight, in [0, 1).
        dropout_seed, dropout_offset: ints in [0, 2**64) that select what is dropped. A function of JAX is pure: dropout
            requires a seed, and the seed is compiled in, so that another seed is another program.
        deterministic: bitwise reproducible gradients on CUDA; the CPU's always are.
        num_threads: on the CPU; 0 uses CUFLASH_NUM_THREADS or every core.

    Returns:
        out, shaped as q with the last dimension of v; with return_lse (out, lse), lse [B, Hq, Sq] or packed [Hq, Tq].

    Raises:
        ValueError: invalid arguments, while JAX traces. Errors that show only when the compiled program runs (bad
            lengths, a problem that the device does not support) are RuntimeErrors of JAX with the same sentence.
    """
    given = dict(locals())  # every argument by name
    if isinstance(mask, MaskSummary):
        raise TypeError("mask: is a MaskSummary; JAX takes the mask itself, whose summary every call makes")
    options = _checked(given)
    q, k, v = _array("q", q), _array("k", k), _array("v", v)
    missing = 4 - q.ndim if layout == "bhsd" else 0
    if not (0 <= missing <= 2 and q.ndim == k.ndim == v.ndim):
        raise ValueError(f"q, k, v: ranks {q.ndim}, {k.ndim}, {v.ndim}; must be equal: 4, or 3 with layout 'thd'; with "
                         "layout 'bhsd' the batch, or batch and heads, may be left out")
    q, k, v = (x.reshape((1,) * missing + x.shape) for x in (q, k, v))
    if options["dropout_p"] and dropout_seed is None:
        raise ValueError("dropout_seed: dropout_p > 0 needs a seed, an int that is compiled in")
    packed = layout == "thd"
    if packed and (cu_seqlens_q is None or cu_seqlens_k is None):
        raise ValueError("cu_seqlens_q, cu_seqlens_k: layout 'thd' needs both")
    arrays = {"q": q, "k": k, "v": v, **{name: _array(name, given[name]) for name in ARRAYS if given[name] is not None}}
    len_k = options["max_seqlen_k"] if packed else k.shape[1 if layout == "bshd" else 2]
    for name in ("bias", "mask"):
        if name in arrays:
            arrays[name] = _pairs(name, arrays[name], len_k)
    if "alibi_slopes" in arrays:
        batch = arrays["cu_seqlens_q"].size - 1 if packed else q.shape[0]
        arrays["alibi_slopes"] = _slopes(arrays["alibi_slopes"], batch)
    out, lse = _attention(_Options(tuple(options.values()), flag(return_lse, "return_lse")), arrays)
    out = out.reshape(out.shape[missing:])
    if lse is not None:
        lse = lse.reshape(lse.shape[missing:])
    return (out, lse) if return_lse else out
