"""Attention over a KV cache and the merging of partial results, on PyTorch tensors.

As in attention(), eager calls go straight to the library. Tracers, compilers and dispatch modes get operators:
torch.ops.cuflash.attend_cache, which writes to the caches, and torch.ops.cuflash.merge_states.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from torch.compiler import is_compiling

from .. import _core
from .._kv_arguments import LAYOUTS, require_batch, require_ranks, results_of
from .._options import CACHE_ARRAYS, CACHE_EXECUTION, CACHE_OPTIONS, check
from .._values import count, flag, layout as layout_named, pair
from . import call
from .arguments import OptionalTensor, numbers, require_given
from .eager import are_eager, require_memory, require_one_device
from .operators import schema

Lengths = Union[Tensor, Sequence[int], None]

# The tensors in the order in which `_core` takes them; k and v are the rows to append.
CacheTensors = namedtuple("CacheTensors", ("q", "k_cache", "v_cache", "k", "v", *CACHE_ARRAYS))

CacheOptions = Tuple[Any, ...]
"""The values of _options.CACHE_OPTIONS."""


def attention_with_cache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: OptionalTensor = None,
                         v: OptionalTensor = None, *, cache_seqlens: Union[int, Lengths] = None,
                         block_table: Any = None, cache_batch_idx: Lengths = None, cache_leftpad: Lengths = None,
                         rotary_cos: OptionalTensor = None, rotary_sin: OptionalTensor = None,
                         rotary_interleaved: bool = False, rotary_one_position: bool = False,
                         sink: OptionalTensor = None, alibi_slopes: OptionalTensor = None, causal: bool = False,
                         window: Tuple[int, int] = (-1, -1), scale: Optional[float] = None, softcap: float = 0.0,
                         seqlens_q: Lengths = None, cu_seqlens_q: Lengths = None, max_seqlen_q: int = 0,
                         seqlens_new: Lengths = None, cu_seqlens_new: Lengths = None, max_seqlen_new: int = 0,
                         layout: str = "bhsd", num_splits: int = 0, return_lse: bool = False,
                         num_threads: int = 0) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """cuflash.attention_with_cache for PyTorch tensors. Lengths and tables may be PagePool's NumPy arrays."""
    require_given(q=q, k_cache=k_cache, v_cache=v_cache)
    require_ranks(q, k_cache, v_cache, layout_named(layout, LAYOUTS))
    left, right = pair(window, "window")
    if not is_compiling():
        return_lse = flag(return_lse, "return_lse")
        (scale, causal, softcap, max_seqlen_q, max_seqlen_new, rotary_interleaved, rotary_one_position, num_splits,
         num_threads) = check(scale=scale, causal=causal, softcap=softcap, max_seqlen_q=max_seqlen_q,
                              max_seqlen_new=max_seqlen_new, rotary_interleaved=rotary_interleaved,
                              rotary_one_position=rotary_one_position, num_splits=num_splits, num_threads=num_threads)
    cu_seqlens_q = numbers(cu_seqlens_q, q, "cu_seqlens_q")
    block_table = numbers(block_table, q, "block_table")
    cache_seqlens = _cached_rows(cache_seqlens, q, k_cache, block_table, cu_seqlens_q, layout, appends=k is not None)
    tensors = CacheTensors(q, k_cache, v_cache, k, v, cache_seqlens, block_table,
                           numbers(cache_batch_idx, q, "cache_batch_idx"), numbers(cache_leftpad, q, "cache_leftpad"),
                           numbers(cu_seqlens_new, q, "cu_seqlens_new"), numbers(seqlens_new, q, "seqlens_new"),
                           rotary_cos, rotary_sin, alibi_slopes, sink, cu_seqlens_q,
                           numbers(seqlens_q, q, "seqlens_q"))
    options = (layout, scale, bool(causal), left, right, softcap, max_seqlen_q, max_seqlen_new,
               bool(rotary_interleaved), bool(rotary_one_position), num_splits)
    if are_eager(tensors) and not _wants_gradient(tensors):
        out, lse = attend(tensors, options, num_threads, return_lse)
    else:
        require_one_device(tensors._asdict().items())
        out, lse = torch.ops.cuflash.attend_cache.default(*tensors, *options, num_threads)
    return (out, lse) if return_lse else out


def merge_states(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor, out: Optional[Tuple[Tensor, Tensor]], *,
                 layout: str, num_threads: int) -> Tuple[Tensor, Tensor]:
    """cuflash.merge_states for PyTorch tensors."""
    require_given(o_a=o_a, lse_a=lse_a, o_b=o_b, lse_b=lse_b)
    layout_named(layout, LAYOUTS)
    if o_a.dim() not in (3, 4):
        raise ValueError(f"o_a: has {o_a.dim()} dimensions; it must have 4, or 3 if it is packed")
    num_threads = count(num_threads, "num_threads")
    if out is not None:
        out = results_of(out)
        require_given(out=out[0], lse=out[1])
    parts = _Parts(o_a, lse_a, o_b, lse_b)
    if not are_eager(parts) or _wants_gradient(parts) or (out is not None and _wants_gradient(out)):
        require_one_device(parts._asdict().items())
        o, lse = torch.ops.cuflash.merge_states.default(*parts, layout, num_threads)
        return (o, lse) if out is None else (out[0].copy_(o), out[1].copy_(lse))
    return _merge(parts, out, layout, num_threads)


def attend(tensors: CacheTensors, options: CacheOptions, num_threads: int,
           want_lse: bool) -> Tuple[Tensor, OptionalTensor]:
    """Calls `_core` with new tensors for the results."""
    q, k_cache, v_cache, *others = tensors
    if k_cache.is_neg() or v_cache.is_neg():
        raise ValueError("k_cache, v_cache: a view whose memory holds the negated numbers cannot be written in place; "
                         "pass its resolve_neg()")
    try:
        q, others = call.rows(q), [call.rows(tensor) for tensor in others]
        layout = _layout_of_queries(q, options[0])
        out, lse = call.new_results((q, k_cache, v_cache), layout, want_lse)
    except (RuntimeError, IndexError):  # see call.forward
        require_memory(tensors._asdict().items())
        raise
    stream, allocate, threads, _, _ = call.runtime(q, (num_threads, False))
    k, v, *others = others
    _core.attend_cache(q, k_cache, v_cache, k, v, out, lse, *others, *options, stream, allocate, threads)
    if k is not None:
        _note_writing(k_cache), _note_writing(v_cache)
    if layout == "thd":
        call.clear_unused_rows(tensors.cu_seqlens_q, out, lse.T if want_lse else None)
    return out, lse


class _Parts(NamedTuple):
    o_a: Tensor
    lse_a: Tensor
    o_b: Tensor
    lse_b: Tensor


def _merge(parts: _Parts, out: Optional[Tuple[Tensor, Tensor]], layout: str,
           num_threads: int) -> Tuple[Tensor, Tensor]:
    try:
        o_a, lse_a, o_b, lse_b = map(call.rows, parts)
    except (RuntimeError, IndexError):  # see call.forward
        require_memory(parts._asdict().items())
        raise
    o, lse = _new_merged(o_a, layout) if out is None else out
    stream, _, threads, _, _ = call.runtime(o_a, (num_threads, False))
    _core.merge_states(o_a, lse_a, o_b, lse_b, o, lse, layout, stream, threads)
    if out is not None:
        _note_writing(o), _note_writing(lse)
    return o, lse


def _new_merged(o: Tensor, layout: str) -> Tuple[Tensor, Tensor]:
    layout = _layout_of_queries(o, layout)
    return call.new_results((o, o, o), layout, want_lse=True)


def _layout_of_queries(q: Tensor, layout: str) -> str:
    return "thd" if q.dim() == 3 else layout


def _note_writing(tensor: Tensor) -> None:
    """Tells autograd that this tensor no longer holds what it may have saved for a backward pass."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


def _cached_rows(lengths: Union[int, Lengths], q: Tensor, k_cache: Tensor, block_table: OptionalTensor,
                 cu_seqlens_q: OptionalTensor, layout: str, appends: bool) -> Tensor:
    if isinstance(lengths, Tensor) and lengths.dim() > 0:
        return lengths
    if not isinstance(lengths, (int, Tensor, type(None))):
        if getattr(lengths, "ndim", 1) > 0 and not isinstance(lengths, float):
            return numbers(lengths, q, "cache_seqlens")
        lengths = count(lengths, "cache_seqlens")
    if type(lengths) is int and not is_compiling():
        lengths = count(lengths, "cache_seqlens")
    require_batch(cu_seqlens_q, block_table)
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    if lengths is None:
        if appends:
            raise ValueError("cache_seqlens: is needed with k: rows of each sequence before the append")
        lengths = k_cache.shape[1 if layout == "bshd" else 2]
        if block_table is not None:
            lengths = lengths * block_table.shape[-1]
    elif isinstance(lengths, Tensor):
        return lengths.expand(batch)
    return torch.full((batch,), lengths, dtype=torch.int32, device=q.device)


def _wants_gradient(tensors: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(
        isinstance(tensor, Tensor) and tensor.requires_grad for tensor in tensors)


_library = torch.library.Library("cuflash", "FRAGMENT")
_ARRAYS = ", ".join(f"{'Tensor' if name == 'cache_seqlens' else 'Tensor?'} {name}" for name in CACHE_ARRAYS)
_library.define(f"attend_cache(Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor? k, Tensor? v, {_ARRAYS}, "
                f"{schema(CACHE_OPTIONS)}, {schema(CACHE_EXECUTION)}) -> (Tensor out, Tensor lse)")
_library.define("merge_states(Tensor o_a, Tensor lse_a, Tensor o_b, Tensor lse_b, str layout, int num_threads) -> "
                "(Tensor out, Tensor lse)")
_TENSORS = len(CacheTensors._fields)


def _attend_operator(*arguments: Any) -> Tuple[Tensor, Tensor]:
    return attend(CacheTensors(*arguments[:_TENSORS]), arguments[_TENSORS:-1], arguments[-1], want_lse=True)


def _merge_operator(*arguments: Any) -> Tuple[Tensor, Tensor]:
    return _merge(_Parts(*arguments[:4]), None, *arguments[4:])


@torch.library.register_fake("cuflash::attend_cache", lib=_library)
def _attend_fake(*arguments: Any) -> Tuple[Tensor, Tensor]:
    tensors = CacheTensors(*arguments[:_TENSORS])
    q = call.rows(tensors.q)
    layout = _layout_of_queries(q, arguments[_TENSORS])
    return call.new_results((q, tensors.k_cache, tensors.v_cache), layout, want_lse=True)


@torch.library.register_fake("cuflash::merge_states", lib=_library)
def _merge_fake(*arguments: Any) -> Tuple[Tensor, Tensor]:
    return _new_merged(call.rows(arguments[0]), arguments[4])


class _NoGradient(torch.autograd.Function):
    """Marks the results if an input requires a gradient: backward then raises instead of silently losing a part."""

    @staticmethod
    def forward(ctx: Any, name: str, out: Tensor, lse: Tensor, *inputs: Tensor) -> Tuple[Tensor, Tensor]:
        ctx.name = name
        return out.view_as(out), lse.view_as(lse)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> None:
        raise RuntimeError(f"{ctx.name} has no gradient; call it under torch.no_grad() or torch.inference_mode(), and "
                           "use cuflash.attention or flash_attn_func to train")


def _without_gradient(name: str, function: str) -> Any:
    """The operator's kernel for the Autograd dispatch key."""

    def kernel(keyset: Any, *arguments: Any) -> Tuple[Tensor, Tensor]:
        operator = getattr(torch.ops.cuflash, name).default
        with torch._C._AutoDispatchBelowAutograd():
            out, lse = operator.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)
        if not _wants_gradient(arguments):
            return out, lse
        inputs = (a for a in arguments if isinstance(a, Tensor) and a.requires_grad)
        return _NoGradient.apply(function, out, lse, *inputs)

    return kernel


for _name, _kernel, _function in (("attend_cache", _attend_operator, "attention with a KV cache"),
                                  ("merge_states", _merge_operator, "merge_states")):
    _library.impl(_name, _kernel, "CPU")
    _library.impl(_name, _kernel, "CUDA")
    _library.impl(_name, _without_gradient(_name, _function), "Autograd", with_keyset=True)
