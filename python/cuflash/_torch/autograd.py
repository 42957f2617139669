"""The eager path, straight to the library. Calling an operator would cost several times as much."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import call
from .arguments import NO_EXTRAS, Execution, Extras, Inputs, Options, OptionalTensor

# The state that a computed call keeps for backward: options and execution, the extras if there are any, out and lse.
_Made = Tuple[Tuple[Options, Execution], Optional[Extras], Tensor, Tensor]


def run(inputs: Inputs, extras: Extras, options: Options, execution: Execution,
        want_lse: bool) -> Tuple[Tensor, OptionalTensor]:
    """out, and lse if wanted; with a graph if something requires a gradient."""
    q, k, v = inputs
    recorded = torch.is_grad_enabled() and (q.requires_grad or k is not None and k.requires_grad or v is not None
                                            and v.requires_grad or extras is not NO_EXTRAS and _requires_grad(extras))
    out, lse = call.forward(q, k, v, extras, options, execution, want_lse or recorded)
    if not recorded:
        return out, lse
    apply = apply_with_lse if want_lse else apply_for_out
    # Each argument of a Function costs time, even None.
    result = (apply(q, k, v, ((options, execution), None, out, lse)) if extras is NO_EXTRAS else
              apply(q, k, v, ((options, execution), extras, out, lse), extras.bias, extras.sink))
    return result if want_lse else (result, None)


def _requires_grad(extras: Extras) -> bool:
    for tensor in extras:
        if tensor is not None and tensor.requires_grad:
            return True
    return False


def _gradients(ctx: Any, dout: OptionalTensor, dlse: OptionalTensor = None) -> Tuple[Optional[Tensor], ...]:
    q, k, v, out, lse, *extras = ctx.saved_tensors
    options, execution = ctx.options
    if not extras:
        want_q, want_k, want_v, _ = ctx.needs_input_grad
        dq, dk, dv, _, _ = call.backward((q, k, v), NO_EXTRAS, options, execution, out, lse, dout, dlse,
                                         (want_q, want_k, want_v, False, False))
        return dq, dk, dv, None
    want_q, want_k, want_v, _, want_bias, want_sink = ctx.needs_input_grad
    dq, dk, dv, dbias, dsink = call.backward((q, k, v), Extras(*extras), options, execution, out, lse, dout, dlse,
                                             (want_q, want_k, want_v, want_bias, want_sink))
    return dq, dk, dv, None, dbias, dsink


_gradients_once = once_differentiable(_gradients)


def _backward(ctx: Any, dout: OptionalTensor, dlse: OptionalTensor = None) -> Tuple[Optional[Tensor], ...]:
    # A recorded graph of the gradients must refuse to be differentiated; without one, that check only costs time.
    if torch.is_grad_enabled():
        return _gradients_once(ctx, dout, dlse)
    return call.backward_of_node(ctx, dout, dlse) or _gradients(ctx, dout, dlse)


class _Attention(torch.autograd.Function):
    """A node that only records: its results are computed before it is applied. bias and sink are direct arguments in
    addition to the extras that contain them, because autograd sees only direct arguments."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: OptionalTensor, v: OptionalTensor, made: _Made, bias: OptionalTensor = None,
                sink: OptionalTensor = None) -> Tensor:
        ctx.options, extras, out, lse = made
        if extras is None:
            ctx.save_for_backward(q, k, v, out, lse)
        else:
            ctx.save_for_backward(q, k, v, out, lse, *extras)
        return out

    backward = staticmethod(_backward)


class _AttentionWithLse(torch.autograd.Function):
    """_Attention with lse as a second result; a separate class, because each result of a Function costs time."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: OptionalTensor, v: OptionalTensor, made: _Made, bias: OptionalTensor = None,
                sink: OptionalTensor = None) -> Tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)  # one of the two results may be unused
        return _Attention.forward(ctx, q, k, v, made), made[3]

    backward = staticmethod(_backward)


# Function.apply first looks for functorch, which eager.is_eager has ruled out; skipping that saves 4 of 10 us.
apply_for_out = super(torch.autograd.Function, _Attention).apply
apply_with_lse = super(torch.autograd.Function, _AttentionWithLse).apply
# The engine calls this on a node of these functions; PyTorch's own version looks for `backward` and `vjp` every time.
_Attention._backward_cls.apply = _AttentionWithLse._backward_cls.apply = _backward
