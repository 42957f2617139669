"""The parts of a call, in the order in which `_core` takes them."""

from __future__ import annotations

from collections import namedtuple
from typing import Any, Iterable, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from .._arrays import MaskSummary
from .._options import ARRAYS

OptionalTensor = Optional[Tensor]


Inputs = Tuple[Tensor, OptionalTensor, OptionalTensor]
"""The inputs as the caller holds them: (q, k, v), (q, kv, None) or (qkv, None, None)

    layout   q                k, v              kv                   qkv
    bhsd     [B, Hq, Sq, D]   [B, Hk, Sk, D]
    bshd     [B, Sq, Hq, D]   [B, Sk, Hk, D]    [B, Sk, 2, Hk, D]    [B, S, 3, H, D]
    thd      [Tq, Hq, D]      [Tk, Hk, D]       [Tk, 2, Hk, D]       [T, 3, H, D]
"""

Execution = Tuple[int, bool]
"""num_threads (CPU; 0: as many as PyTorch uses), deterministic (CUDA: gradients repeat bit for bit)"""

Extras = namedtuple("Extras", ARRAYS, defaults=(None,) * len(ARRAYS))
"""The optional tensors. _core.pyi has their shapes."""

NO_EXTRAS = Extras()
"""The usual case, recognized by identity: there is nothing to inspect."""


def extras(alibi_slopes: OptionalTensor = None, bias: OptionalTensor = None, mask: OptionalTensor = None,
           sink: OptionalTensor = None, cu_seqlens_q: OptionalTensor = None, cu_seqlens_k: OptionalTensor = None,
           seqlens_q: OptionalTensor = None, seqlens_k: OptionalTensor = None) -> Extras:
    """Extras with a bias and a mask that may lack leading dimensions. Named parameters, because stars cost 0.3 us."""
    if bias is mask is sink is alibi_slopes is cu_seqlens_q is cu_seqlens_k is seqlens_q is seqlens_k is None:
        return NO_EXTRAS
    if isinstance(mask, MaskSummary):
        mask = mask.words  # in the place of the mask, which the library tells by their type
    given = Extras(alibi_slopes, bias, mask, sink, cu_seqlens_q, cu_seqlens_k, seqlens_q, seqlens_k)
    require_tensors(given._asdict().items())
    return given._replace(bias=_rank_four(bias, "bias"), mask=_rank_four(mask, "mask"))


def require_tensors(tensors: Iterable[Tuple[str, Any]]) -> None:
    for name, tensor in tensors:
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is of type {type(tensor).__name__}; it must be a torch.Tensor")


def require_given(**tensors: Any) -> None:
    for name, tensor in tensors.items():
        if tensor is None:
            raise TypeError(f"{name} is None; it must be a torch.Tensor")
    require_tensors(tensors.items())


def _rank_four(tensor: OptionalTensor, name: str) -> OptionalTensor:
    if tensor is None or tensor.dim() >= 4:
        return tensor
    if is_compiling():
        return tensor[(None,) * (4 - tensor.dim())]
    try:
        return tensor[(None,) * (4 - tensor.dim())]
    except RuntimeError as error:  # a sparse tensor, or one whose storage was resized
        raise ValueError(f"{name}: its memory cannot be accessed: {str(error).splitlines()[0]}") from None


Options = Tuple[Any, ...]
"""The values of _options.OPTIONS. A plain tuple, because every call makes one."""


class Wanted(NamedTuple):
    """The tensors whose gradients to compute; k and v do not count if they are packed into another tensor."""

    q: bool
    k: bool
    v: bool
    bias: bool
    sink: bool


Gradients = Tuple[OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor]
"""of q, k, v (as the caller holds them), bias, sink"""


def unpack(inputs: Inputs) -> Tuple[Tensor, Tensor, Tensor]:
    """q, k and v, as views if they are packed."""
    q, k, v = inputs
    if v is not None:
        return inputs
    return (q, *k.unbind(-3)) if k is not None else q.unbind(-3)


def unpack_gradients(inputs: Inputs, dq: OptionalTensor, dk: OptionalTensor,
                     dv: OptionalTensor) -> Tuple[OptionalTensor, OptionalTensor, OptionalTensor]:
    """dq, dk and dv as the views that unpack makes of the inputs, so that kernels write straight into packed
    gradients."""
    if inputs[1] is None:
        return dq.unbind(-3) if dq is not None else (None, None, None)
    if inputs[2] is None:
        return (dq, *(dk.unbind(-3) if dk is not None else (None, None)))
    return dq, dk, dv


def shape_of_part(packed: Tensor, count: int, name: str) -> List[int]:
    """The shape of each tensor that is packed into this one."""
    shape = list(packed.shape)
    if len(shape) < 3 or shape.pop(-3) != count:
        shape = list(packed.shape)
        raise ValueError(f"{name} has shape {shape}; its third dimension from the end must be {count}: "
                         f"[..., {count}, H, D]")
    return shape


def numbers(given: Any, q: Tensor, name: str) -> OptionalTensor:
    """A tensor as it is; a list, or a NumPy array such as PagePool's, as a tensor on the device of q."""
    if given is None or isinstance(given, Tensor):
        return given
    if is_compiling():
        return torch.as_tensor(given, dtype=torch.int32, device=q.device)
    import numpy

    from .._numpy import integers

    return torch.from_numpy(integers(numpy, given, name)).to(q.device)
