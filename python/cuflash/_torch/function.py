"""The short road: plain eager PyTorch, straight to the library. An operator call would cost several times as much."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import call
from .arguments import Execution, Extras, Inputs, Options, OptionalTensor, Wanted


def run(inputs: Inputs, extras: Extras, options: Options, execution: Execution,
        want_lse: bool) -> Tuple[Tensor, OptionalTensor]:
    """out and, where it is wanted, lse; with a graph where something requires a gradient."""
    if torch.is_grad_enabled() and any(
            tensor is not None and tensor.requires_grad for tensor in (*inputs, extras.bias, extras.sink)):
        return _Attention.apply(*inputs, extras.bias, extras.sink, extras, options, execution)
    return call.forward(inputs, extras, options, execution, want_lse)


class _Attention(torch.autograd.Function):
    """bias and sink stand beside extras, which has them too, because autograd sees direct arguments only."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: OptionalTensor, v: OptionalTensor, bias: OptionalTensor, sink: OptionalTensor,
                extras: Extras, options: Options, execution: Execution) -> Tuple[Tensor, Tensor]:
        out, lse = call.forward(Inputs(q, k, v), extras, options, execution, want_lse=True)
        ctx.save_for_backward(q, k, v, out, lse, *extras)
        ctx.options = options
        ctx.execution = execution
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: OptionalTensor, dlse: OptionalTensor) -> Tuple[Optional[Tensor], ...]:
        q, k, v, out, lse, *extras = ctx.saved_tensors
        gradients = call.backward(Inputs(q, k, v), Extras(*extras), ctx.options, ctx.execution, out, lse, dout,
                                  dlse, Wanted(*ctx.needs_input_grad[:5]))
        return (*gradients, None, None, None)
