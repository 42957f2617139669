"""The short road: plain eager PyTorch, straight to the library. An operator call would cost several times as much."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import call
from .arguments import NO_EXTRAS, Execution, Extras, Inputs, Options, OptionalTensor, Wanted


def run(inputs: Inputs, extras: Extras, options: Options, execution: Execution,
        want_lse: bool) -> Tuple[Tensor, OptionalTensor]:
    """out and, where it is wanted, lse; with a graph where something requires a gradient."""
    if torch.is_grad_enabled() and (_requires_grad(inputs) or extras is not NO_EXTRAS and _requires_grad(extras)):
        apply = _apply_with_lse if want_lse else _apply
        result = apply(*inputs, extras.bias, extras.sink, extras, options, execution)
        return result if want_lse else (result, None)
    return call.forward(inputs, extras, options, execution, want_lse)


def _requires_grad(tensors: Sequence[OptionalTensor]) -> bool:
    for tensor in tensors:
        if tensor is not None and tensor.requires_grad:
            return True
    return False


def _forward(ctx: Any, q: Tensor, k: OptionalTensor, v: OptionalTensor, extras: Extras, options: Options,
             execution: Execution) -> Tuple[Tensor, Tensor]:
    out, lse = call.forward((q, k, v), extras, options, execution, want_lse=True)
    ctx.save_for_backward(q, k, v, out, lse, *(extras if extras is not NO_EXTRAS else ()))
    ctx.options = options
    ctx.execution = execution
    ctx.set_materialize_grads(False)
    return out, lse


def _gradients(ctx: Any, dout: OptionalTensor, dlse: OptionalTensor = None) -> Tuple[Optional[Tensor], ...]:
    q, k, v, out, lse, *extras = ctx.saved_tensors
    extras = Extras(*extras) if extras else NO_EXTRAS
    gradients = call.backward((q, k, v), extras, ctx.options, ctx.execution, out, lse, dout, dlse,
                              Wanted(*ctx.needs_input_grad[:5]))
    return (*gradients, None, None, None)


_gradients_once = once_differentiable(_gradients)


def _backward(ctx: Any, *gradients: OptionalTensor) -> Tuple[Optional[Tensor], ...]:
    # A graph of gradients has to refuse to be differentiated; where nobody records one, that costs time for nothing.
    return (_gradients_once if torch.is_grad_enabled() else _gradients)(ctx, *gradients)


class _Attention(torch.autograd.Function):
    """bias and sink stand beside extras, which has them too, because autograd sees direct arguments only."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: OptionalTensor, v: OptionalTensor, bias: OptionalTensor, sink: OptionalTensor,
                extras: Extras, options: Options, execution: Execution) -> Tensor:
        return _forward(ctx, q, k, v, extras, options, execution)[0]

    backward = staticmethod(_backward)


class _AttentionWithLse(torch.autograd.Function):
    """The same, for those who want lse: each result of a Function costs time."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: OptionalTensor, v: OptionalTensor, bias: OptionalTensor, sink: OptionalTensor,
                extras: Extras, options: Options, execution: Execution) -> Tuple[Tensor, Tensor]:
        return _forward(ctx, q, k, v, extras, options, execution)

    backward = staticmethod(_backward)


# Function.apply first looks for functorch, which road.is_plain has ruled out: 4 of 10 us.
_apply = super(torch.autograd.Function, _Attention).apply
_apply_with_lse = super(torch.autograd.Function, _AttentionWithLse).apply
