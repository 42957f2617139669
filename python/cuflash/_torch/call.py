"""Calls of `_core` with new tensors for the results, below autograd and the dispatcher.

The eager path (autograd.py) and the operators (operators.py) both end here. The fake kernels use the same functions to
allocate results, so that shapes and strides are defined once.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import _core
from .arguments import (NO_EXTRAS, Execution, Extras, Gradients, Inputs, Options, OptionalTensor, shape_of_part,
                        unpack_gradients)
from .eager import (PLAIN_TYPES, are_functorch_transforms_active, is_any_autocast_enabled, is_tracing,
                    len_torch_dispatch_stack, named, require_memory)


def rows(tensor: OptionalTensor) -> OptionalTensor:
    """The tensor itself if its rows are contiguous, which is all that the library requires; otherwise a copy."""
    if tensor is None:
        return None
    if tensor.is_neg():  # a view whose memory holds the negated numbers
        tensor = tensor.resolve_neg()
    if tensor.is_contiguous() or tensor.stride(-1) == 1 or tensor.shape[-1] == 1:
        return tensor
    return tensor.contiguous()


def rows_of_inputs(inputs: Inputs) -> Inputs:
    q, k, v = inputs
    if (v is not None and k is not None and q.is_contiguous() and k.is_contiguous() and v.is_contiguous()
            and not (q.is_neg() or k.is_neg() or v.is_neg())):  # the usual case, with the fewest checks
        return inputs
    return rows(q), rows(k), rows(v)


def forward(q: Tensor, k: OptionalTensor, v: OptionalTensor, extras: Extras, options: Options, execution: Execution,
            want_lse: bool) -> Tuple[Tensor, OptionalTensor]:
    """out in the layout of q, and lse ([B, Hq, Sq] or packed [Hq, Tq]) if wanted."""
    try:
        return _forward(q, k, v, None if extras is NO_EXTRAS else extras, options, execution, want_lse)
    except (RuntimeError, IndexError, ValueError):  # a sparse tensor has no strides, a nested one no shape
        require_memory(named((q, k, v), extras))
        raise


def backward(inputs: Inputs, extras: Extras, options: Options, execution: Execution, out: Tensor, lse: Tensor,
             dout: OptionalTensor, dlse: OptionalTensor, wanted: Sequence[bool]) -> Gradients:
    """The wanted gradients (see Wanted), each with the shape of its tensor; None for the others."""
    q, k, v = inputs
    if wanted[3]:
        extras = extras._replace(bias=_without_repeats(extras.bias))
    if dout is None:
        dout = torch.zeros_like(out)
    gradients = _backward(q, k, v, extras, options, execution, out, lse, dout, dlse, wanted)
    if options[0] == "thd" and not q.is_cuda:
        dq, dk, dv = unpack_gradients(inputs, *gradients[:3])
        clear_unused_rows(extras.cu_seqlens_q, dq)
        clear_unused_rows(extras.cu_seqlens_k, dk, dv)
    return gradients


def new_results(inputs: Inputs, layout: str, want_lse: bool) -> Tuple[Tensor, OptionalTensor]:
    """Memory for out, contiguous in the layout of q, and for lse if wanted: f32, or f64 for f64. If q is a bhsd view of
    bshd memory, so is out."""
    q, k, v = inputs
    if v is not None:
        shape, size = q.shape, v.shape[-1]
    elif k is not None:
        shape, size = q.shape, shape_of_part(k, 2, "kv")[-1]
    else:
        shape = shape_of_part(q, 3, "qkv")
        size = shape[-1]
    dtype = q.dtype
    dtype_of_lse = _F64 if dtype is _F64 else _F32
    if len(shape) != 4:
        if len(shape) != 3:
            raise ValueError(f"q: has {len(shape)} dimensions; it must have 4, or 3 if sequences are packed")
        # Rows that belong to no sequence are not written: PyTorch allocates them, and fills them if it is set to fill
        # uninitialized memory.
        out = q.new_empty((*shape[:-1], size))
        return out, q.new_empty((shape[1], shape[0]), dtype=dtype_of_lse) if want_lse else None
    batch, heads, length, _ = shape
    shape, strides = (batch, heads, length, size), (heads * length * size, length * size, size, 1)
    if layout == "bshd":
        heads, length = length, heads
    elif not q.is_contiguous() and q.stride(1) < q.stride(2):
        strides = (heads * length * size, size, heads * size, 1)
    empty = _allocation(q)
    out = empty(shape, strides, dtype)
    return out, empty((batch, heads, length), (heads * length, length, 1), dtype_of_lse) if want_lse else None


_Empty = Callable[[Tuple[int, ...], Tuple[int, ...], torch.dtype], Tensor]


def _allocation(q: Tensor) -> _Empty:
    """A function of shape, strides and type that allocates on the device of q.

    The functions of PyTorch's compiler take half as long, and work for ordinary tensors on the current device."""
    if type(q) in PLAIN_TYPES:
        if q.is_cuda:
            if _empty_cuda is not None and q.get_device() == _current_device():
                return _empty_cuda
        elif q.is_cpu and _empty_cpu is not None:
            return _empty_cpu
    return lambda shape, strides, dtype: q.new_empty_strided(shape, strides, dtype=dtype)


def new_gradients(inputs: Inputs, extras: Extras, layout: str, wanted: Sequence[bool]) -> Gradients:
    """Memory for the wanted gradients, None for the others."""
    q, k, v = inputs
    want_q, want_k, want_v, want_bias, want_sink = wanted
    if layout == "thd":  # for the reason given in new_results
        dq, dk, dv = (_new_like(q) if want_q else None, _new_like(k) if want_k else None,
                      _new_like(v) if want_v else None)
    else:
        empty = _allocation(q)
        dq, dk, dv = (_new_dense(q, empty) if want_q else None, _new_dense(k, empty) if want_k else None,
                      _new_dense(v, empty) if want_v else None)
    return (dq, dk, dv, _new_like(extras.bias) if want_bias else None, _new_like(extras.sink) if want_sink else None)


def _new_dense(tensor: Tensor, empty: _Empty) -> Tensor:
    if tensor.is_contiguous():
        return empty(tuple(tensor.shape), tensor.stride(), tensor.dtype)
    return _new_like(tensor)


def _new_like(tensor: Tensor) -> Tensor:
    # empty_like keeps the order of the dimensions, which the library supports only if rows stay contiguous.
    new = torch.empty_like(tensor)
    return new if new.is_contiguous() or rows(new) is new else tensor.new_empty(tensor.shape)


def _without_repeats(bias: Tensor) -> Tensor:
    """A copy of an expanded bias: the library sums the gradient over repeats, but autograd sums itself and wants every
    part. A bias with size 1 in place of the expanded dimension needs neither the copy nor the parts."""
    repeats = any(stride == 0 and size > 1 for stride, size in zip(bias.stride(), bias.shape))
    return bias.clone(memory_format=torch.contiguous_format) if repeats else bias


def clear_unused_rows(cu_seqlens: OptionalTensor, *tensors: OptionalTensor) -> None:
    """Zeroes the rows beyond cu_seqlens[-1], which belong to no sequence and were not written, so that whatever reads
    them stays finite. In host memory only: on CUDA, finding the first of them would wait for the device."""
    if cu_seqlens is None or cu_seqlens.is_cuda or cu_seqlens.numel() == 0:
        return
    used = int(cu_seqlens[-1])
    for tensor in tensors:
        if tensor is not None and used < tensor.shape[0]:
            tensor[used:].zero_()


_F32, _F64 = torch.float32, torch.float64
_allocators: Dict[int, Callable[[int], Tensor]] = {}
# The library reads CUFLASH_NUM_THREADS; without it, torch.set_num_threads decides.
_library_counts_threads = "CUFLASH_NUM_THREADS" in os.environ


def runtime(q: Tensor, execution: Execution) -> Tuple[int, Optional[Callable[[int], Any]], int, bool, bool]:
    """stream, allocate, num_threads, check_lengths, deterministic"""
    if not q.is_cuda:
        threads = execution[0] or (0 if _library_counts_threads else torch.get_num_threads())
        return 0, None, threads, False, False
    index = q.get_device()
    if _empty_cuda is not None and index == _current_device():
        return _raw_stream(index), _allocate_here, 0, False, execution[1]
    allocate = _allocators.get(index)
    if allocate is None:
        allocate = _allocators[index] = _allocator(q.device)
    return _raw_stream(index), allocate, 0, False, execution[1]


def _allocate_here(count: int) -> Tensor:
    return _empty_cuda((count,), (1,), torch.uint8)


def _allocator(device: torch.device) -> Callable[[int], Tensor]:
    # PyTorch's caching allocator reuses memory in stream order, so a workspace may be freed at the end of the call.
    return functools.partial(torch.empty, dtype=torch.uint8, device=device)


def _raw_stream_by_object(index: int) -> int:
    return torch.cuda.current_stream(index).cuda_stream


# PyTorch's compiler uses this too: it makes no Stream object.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _raw_stream_by_object)
_current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
_guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_empty_cpu, _empty_cuda = (getattr(_guards, f"_empty_strided_{device}", None) for device in ("cpu", "cuda"))


def _num_threads() -> int:
    return 0 if _library_counts_threads else torch.get_num_threads()


def _calls(num_threads: Callable[[], int]) -> _core.Torch:
    return _core.Torch(
        Tensor, torch.nn.Parameter, torch.float16, torch.bfloat16, _F32, _F64, torch.uint8, _empty_cpu, _empty_cuda,
        _current_device, _raw_stream, num_threads, _new_like, clear_unused_rows, torch._C._get_deterministic_algorithms,
        torch.is_grad_enabled,
        (len_torch_dispatch_stack, are_functorch_transforms_active, is_tracing, is_any_autocast_enabled), forward_ad)


_native = _calls(_num_threads)
_forward, _backward, backward_of_node = _native.forward, _native.backward, _native.backward_of_node
plain_call = _native.plain_call
