"""Whether anybody but autograd looks at the tensors of a call."""

from __future__ import annotations

from typing import Iterable, NamedTuple, Optional, Tuple

import torch
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from .arguments import NO_EXTRAS, Extras, Inputs

PLAIN_TYPES = {torch.Tensor, torch.nn.Parameter, type(None)}


def is_plain(inputs: Inputs, extras: Extras) -> bool:
    """True in eager mode with ordinary tensors on a device that the library knows.

    False for compilers and exporters, dispatch modes (which count, fake or offload operators), tracers, functorch and
    tensor subclasses: all of these work on operators, and a call that is none would pass them by."""
    if is_compiling():
        return False
    if forward_ad._current_level >= 0:
        _refuse_tangents(_named(inputs, extras))
    q, k, v = inputs
    if not (type(q) in PLAIN_TYPES and type(k) in PLAIN_TYPES and type(v) in PLAIN_TYPES and
            (extras is NO_EXTRAS or set(map(type, extras)) <= PLAIN_TYPES)):
        _require_tensors(_named(inputs, extras))
        return False
    return not (_len_torch_dispatch_stack() or _are_functorch_transforms_active() or _is_tracing()) and (q.is_cuda
                                                                                                         or q.is_cpu)


def are_plain(tensors: NamedTuple) -> bool:
    """The same for tensors with names, of which the first is there."""
    if is_compiling():
        return False
    if forward_ad._current_level >= 0:
        _refuse_tangents(tensors._asdict().items())
    if not PLAIN_TYPES.issuperset(map(type, tensors)):
        _require_tensors(tensors._asdict().items())
        return False
    first = tensors[0]
    return (first.is_cuda or first.is_cpu) and not (_len_torch_dispatch_stack() or _are_functorch_transforms_active()
                                                    or _is_tracing())


_Named = Iterable[Tuple[str, Optional[torch.Tensor]]]


def _named(inputs: Inputs, extras: Extras) -> _Named:
    return (*zip("qkv", inputs), *extras._asdict().items())


def _require_tensors(tensors: _Named) -> None:
    for name, tensor in tensors:
        if tensor is not None and not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is of type {type(tensor).__name__}; it must be a torch.Tensor")


def _refuse_tangents(tensors: _Named) -> None:
    # Without this, a tangent would be lost without a word.
    for name, tensor in tensors:
        if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotImplementedError(f"{name} has a forward-mode tangent; cuflash differentiates backwards only")


_len_torch_dispatch_stack = torch._C._len_torch_dispatch_stack
_are_functorch_transforms_active = torch._C._are_functorch_transforms_active
_is_tracing = torch._C._is_tracing
