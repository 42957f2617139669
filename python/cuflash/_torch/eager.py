"""Decides whether a call may take the eager path, straight to the library, and has the checks of the other path."""

from __future__ import annotations

from typing import Iterable, NamedTuple, Optional, Tuple

import torch
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from .arguments import NO_EXTRAS, Extras, Inputs, require_tensors

PLAIN_TYPES = {torch.Tensor, torch.nn.Parameter, type(None)}


def is_eager(inputs: Inputs, extras: Extras) -> bool:
    """True in eager mode with ordinary tensors on a device that the library supports.

    False under compilers and exporters, dispatch modes (which count, fake or offload operators), tracers and functorch,
    and for tensor subclasses: all of these see operators only, and would miss a call that is not one."""
    return not is_compiling() and is_plain(inputs, extras)


def is_plain(inputs: Inputs, extras: Extras) -> bool:
    """is_eager for a caller that knows that nothing is being compiled."""
    if forward_ad._current_level >= 0:
        _refuse_tangents(named(inputs, extras))
    q, k, v = inputs
    if not (type(q) in PLAIN_TYPES and type(k) in PLAIN_TYPES and type(v) in PLAIN_TYPES and
            (extras is NO_EXTRAS or set(map(type, extras)) <= PLAIN_TYPES)):
        require_tensors(named(inputs, extras))
        return False
    return not (len_torch_dispatch_stack() or are_functorch_transforms_active() or is_tracing()) and (q.is_cuda
                                                                                                         or q.is_cpu)


def are_eager(tensors: NamedTuple) -> bool:
    """is_eager for named tensors, the first of which is not None."""
    if is_compiling():
        return False
    if forward_ad._current_level >= 0:
        _refuse_tangents(tensors._asdict().items())
    if not PLAIN_TYPES.issuperset(map(type, tensors)):
        require_tensors(tensors._asdict().items())
        return False
    first = tensors[0]
    return (first.is_cuda or first.is_cpu) and not (len_torch_dispatch_stack() or are_functorch_transforms_active()
                                                    or is_tracing())


_Named = Iterable[Tuple[str, Optional[torch.Tensor]]]


def named(inputs: Inputs, extras: Extras) -> _Named:
    return (*zip("qkv", inputs), *extras._asdict().items())


def require_one_device(tensors: _Named) -> None:
    """Raises unless all tensors are on one device. The dispatcher chooses a kernel by one of the tensors: if that is on
    the meta device, the result has no memory, wherever the others are."""
    first = first_name = None
    for name, tensor in tensors:
        if tensor is None:
            continue
        if first is None:
            first, first_name = tensor.device, name
        elif tensor.device != first:
            raise ValueError(f"{name}: is on {tensor.device}, but {first_name} is on {first}; all tensors of a call "
                             "must be on the same device")


def require_memory(tensors: _Named) -> None:
    """Rejects tensors without strided memory, naming the argument, which PyTorch's own error does not."""
    for name, tensor in tensors:
        if tensor is None:
            continue
        if tensor.is_nested:
            raise ValueError(f"{name}: is a nested tensor; give its sequences packed, with cu_seqlens, or padded")
        if tensor.layout != torch.strided:
            raise ValueError(f"{name}: has the layout {tensor.layout}; cuflash takes dense tensors, as to_dense() makes")
        if tensor.dim() == 0:
            raise ValueError(f"{name}: is a single number; it must have 1 to 4 dimensions")


def _refuse_tangents(tensors: _Named) -> None:
    # Without this check, a tangent would be lost silently.
    for name, tensor in tensors:
        if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotImplementedError(f"{name} has a forward-mode tangent; cuflash supports reverse mode only")


len_torch_dispatch_stack = torch._C._len_torch_dispatch_stack
are_functorch_transforms_active = torch._C._are_functorch_transforms_active
is_tracing = torch._C._is_tracing
is_any_autocast_enabled = torch._C._is_any_autocast_enabled
