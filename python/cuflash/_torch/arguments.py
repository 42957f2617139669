"""What a call is made of, in the order in which `_core` takes it."""

from __future__ import annotations

from typing import Any, Iterable, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

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


class Extras(NamedTuple):
    """Tensors that take part in the scores, and lengths. All optional."""

    alibi_slopes: OptionalTensor = None
    """f32 [Hq] or [B, Hq]"""
    bias: OptionalTensor = None
    """[B or 1, Hq or 1, Sq or 1, Sk], type of q or f32"""
    mask: OptionalTensor = None
    """bool, shaped as bias; False hides the key"""
    sink: OptionalTensor = None
    """[Hq], type of q or f32"""
    cu_seqlens_q: OptionalTensor = None
    """i32 [B + 1], as cu_seqlens_k"""
    cu_seqlens_k: OptionalTensor = None
    seqlens_q: OptionalTensor = None
    """i32 [B], as seqlens_k"""
    seqlens_k: OptionalTensor = None


NO_EXTRAS = Extras()
"""The usual case, told by identity: nothing to look through."""


def extras(alibi_slopes: OptionalTensor, bias: OptionalTensor, mask: OptionalTensor, sink: OptionalTensor,
           cu_seqlens_q: OptionalTensor = None, cu_seqlens_k: OptionalTensor = None, seqlens_q: OptionalTensor = None,
           seqlens_k: OptionalTensor = None) -> Extras:
    """Extras with a bias and a mask that may lack leading dimensions."""
    if bias is mask is sink is alibi_slopes is cu_seqlens_q is cu_seqlens_k is seqlens_q is seqlens_k is None:
        return NO_EXTRAS
    given = Extras(alibi_slopes, bias, mask, sink, cu_seqlens_q, cu_seqlens_k, seqlens_q, seqlens_k)
    require_tensors(given._asdict().items())
    return given._replace(bias=_rank_four(bias, "bias"), mask=_rank_four(mask, "mask"))


def require_tensors(tensors: Iterable[Tuple[str, Any]]) -> None:
    for name, tensor in tensors:
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is of type {type(tensor).__name__}; it must be a torch.Tensor")


def _rank_four(tensor: OptionalTensor, name: str) -> OptionalTensor:
    if tensor is None or tensor.dim() >= 4:
        return tensor
    if is_compiling():
        return tensor[(None,) * (4 - tensor.dim())]
    try:
        return tensor[(None,) * (4 - tensor.dim())]
    except RuntimeError as error:  # a sparse tensor, or one whose storage was resized
        raise ValueError(f"{name}: its memory cannot be had: {str(error).splitlines()[0]}") from None


Options = Tuple[str, Optional[float], bool, bool, int, int, float, float, int, int, int, int]
"""Everything that is not a tensor and changes the result. No NamedTuple: one is made in every call."""

OPTIONS = ("layout", "scale", "causal", "top_left", "window_left", "window_right", "softcap", "dropout_p",
           "dropout_seed", "dropout_offset", "max_seqlen_q", "max_seqlen_k")
"""The names of Options"""


class Wanted(NamedTuple):
    """The tensors whose gradients are computed; k and v say nothing where they are packed into another tensor."""

    q: bool
    k: bool
    v: bool
    bias: bool
    sink: bool


Gradients = Tuple[OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor]
"""of q, k, v (as the caller holds them), bias, sink"""


def unpack(inputs: Inputs) -> Tuple[Tensor, Tensor, Tensor]:
    """Views of q, k and v, whichever way they came."""
    q, k, v = inputs
    if v is not None:
        return inputs
    return (q, *k.unbind(-3)) if k is not None else q.unbind(-3)


def unpack_gradients(inputs: Inputs, dq: OptionalTensor, dk: OptionalTensor,
                     dv: OptionalTensor) -> Tuple[OptionalTensor, OptionalTensor, OptionalTensor]:
    """The same views of the gradients of these inputs, so that a kernel writes straight into a packed gradient."""
    if inputs[1] is None:
        return dq.unbind(-3) if dq is not None else (None, None, None)
    if inputs[2] is None:
        return (dq, *(dk.unbind(-3) if dk is not None else (None, None)))
    return dq, dk, dv


def shape_of_part(packed: Tensor, count: int, name: str) -> List[int]:
    """The shape of each of the tensors that are packed into this one."""
    shape = list(packed.shape)
    if len(shape) < 3 or shape.pop(-3) != count:
        shape = list(packed.shape)
        raise ValueError(f"{name} has shape {shape}; its third last dimension must be {count}: [..., {count}, H, D]")
    return shape


def numbers(given: Any, q: Tensor, name: str) -> OptionalTensor:
    """A tensor as it is; a list, or a NumPy array of a page pool, as one where q is."""
    if given is None or isinstance(given, Tensor):
        return given
    if is_compiling():
        return torch.as_tensor(given, dtype=torch.int32, device=q.device)
    import numpy

    from .._numpy import integers

    return torch.from_numpy(integers(numpy, given, name)).to(q.device)
