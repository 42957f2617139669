"""What a call is made of, in the order in which `_core` takes it."""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

from torch import Tensor

OptionalTensor = Optional[Tensor]


class Inputs(NamedTuple):
    """The three inputs as the caller holds them: q, k, v; or q, kv; or qkv."""

    q: Tensor
    """[B, S, H, D] (layout bshd), [B, H, S, D] (bhsd) or [T, H, D] (thd); all of qkv, [..., 3, H, D], where k is None"""
    k: OptionalTensor = None
    """as q with the heads of the keys; all of kv, [..., 2, H, D], where v is None"""
    v: OptionalTensor = None


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


class Options(NamedTuple):
    """Everything that is not a tensor and changes the result."""

    layout: str
    scale: Optional[float]
    causal: bool
    top_left: bool
    window_left: int
    window_right: int
    softcap: float
    dropout_p: float
    dropout_seed: int
    dropout_offset: int
    max_seqlen_q: int
    max_seqlen_k: int


class Execution(NamedTuple):
    """What changes how a call is computed, and on the CPU never its result."""

    num_threads: int
    """CPU: 0 takes as many as PyTorch uses"""
    deterministic: bool
    """CUDA: gradients repeat bit for bit"""


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
    if k is None:
        return _parts(q, 3, "qkv")
    if v is None:
        return (q, *_parts(k, 2, "kv"))
    return q, k, v


def unpack_gradients(inputs: Inputs, dq: OptionalTensor, dk: OptionalTensor, dv: OptionalTensor):
    """The same views of the gradients of these inputs, so that a kernel writes straight into a packed gradient."""
    if inputs.k is None:
        return dq.unbind(-3) if dq is not None else (None, None, None)
    if inputs.v is None:
        return (dq, *(dk.unbind(-3) if dk is not None else (None, None)))
    return dq, dk, dv


def _parts(tensor: Tensor, count: int, name: str):
    if tensor.dim() < 3 or tensor.shape[-3] != count:
        shape = list(tensor.shape)
        raise ValueError(f"{name} has shape {shape}; its third last dimension must be {count}: [..., {count}, H, D]")
    return tensor.unbind(-3)
