"""torch.ops.cuflash: the operators that compilers, exporters, dispatch modes and tensor subclasses see.

    forward(...) -> (out, lse)          backward(..., wanted) -> the wanted gradients

Both are pure functions of their arguments, which include the dropout seed (rng_state, see seeds.py).
"""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

import torch
from torch import Tensor

from .._options import ARRAYS, EXECUTION, OPTIONS, Option, names
from . import autocast, call, seeds
from .arguments import Execution, Extras, Inputs, Options, OptionalTensor, Wanted

NO_GRADIENT_OF_SLOPES = ("alibi_slopes requires a gradient, which cuflash does not compute; "
                         "pass alibi_slopes.detach()")


def schema(options: Sequence[Option]) -> str:
    """These options as arguments of an operator. One tensor, rng_state, replaces the two numbers of a seed."""
    known = [option._replace(name="rng_state") if option.name == "dropout_seed" else option for option in options]
    return ", ".join(f"{option.kind.schema} {option.name}" for option in known if option.name != "dropout_offset")


# The positions of these among the arguments of an operator.
_EXTRAS_AT = slice(3, 3 + len(ARRAYS))
_OPTIONS_AT = slice(_EXTRAS_AT.stop, _EXTRAS_AT.stop + len(OPTIONS) - 1)
_EXECUTION_AT = slice(_OPTIONS_AT.stop, _OPTIONS_AT.stop + len(EXECUTION))
_RNG_STATE = names(OPTIONS).index("dropout_seed")
_DROPOUT_P = names(OPTIONS).index("dropout_p")

_ARGUMENTS = ", ".join(["Tensor q", "Tensor? k", "Tensor? v", *(f"Tensor? {name}" for name in ARRAYS), schema(OPTIONS),
                        schema(EXECUTION)])
_library = torch.library.Library("cuflash", "FRAGMENT")
_library.define(f"forward({_ARGUMENTS}) -> (Tensor out, Tensor lse)")
_library.define(f"backward({_ARGUMENTS}, Tensor out, Tensor lse, Tensor? dout, Tensor? dlse, bool[] wanted) "
                "-> Tensor[]")


def run(inputs: Inputs, extras: Extras, options: Options, rng_state: OptionalTensor,
        execution: Execution) -> Tuple[Tensor, Tensor]:
    """out and lse through the dispatcher. rng_state replaces the seed and the offset in the options."""
    return torch.ops.cuflash.forward.default(*inputs, *extras, *options[:_RNG_STATE], rng_state,
                                             *options[_RNG_STATE + 2:], *execution)


def _read(arguments: Tuple[Any, ...]) -> Tuple[Inputs, Extras, Options, Execution]:
    """The arguments that both operators share, as call.py takes them."""
    options = arguments[_OPTIONS_AT]
    rng_state = options[_RNG_STATE]
    seed = seeds.as_numbers(rng_state) if rng_state is not None else (0, 0)
    options = (*options[:_RNG_STATE], *seed, *options[_RNG_STATE + 1:])
    if rng_state is None and options[_DROPOUT_P] > 0:
        raise ValueError("dropout_p > 0 needs rng_state, an i64 tensor (seed, offset) in host memory")
    return arguments[:3], Extras(*arguments[_EXTRAS_AT]), options, arguments[_EXECUTION_AT]


def _forward(*arguments: Any) -> Tuple[Tensor, Tensor]:
    inputs, *rest = _read(arguments)
    return call.forward(*inputs, *rest, want_lse=True)


def _backward(*arguments: Any) -> List[Tensor]:
    *results, wanted = arguments[_EXECUTION_AT.stop:]
    gradients = call.backward(*_read(arguments), *results, Wanted(*wanted))
    return [gradient for gradient in gradients if gradient is not None]


for _device in ("CPU", "CUDA"):
    _library.impl("forward", _forward, _device)
    _library.impl("backward", _backward, _device)


@torch.library.register_fake("cuflash::forward", lib=_library)
def _forward_fake(*arguments: Any) -> Tuple[Tensor, Tensor]:
    return call.new_results(call.rows_of_inputs(arguments[:3]), arguments[_OPTIONS_AT][0], want_lse=True)


@torch.library.register_fake("cuflash::backward", lib=_library)
def _backward_fake(*arguments: Any) -> List[Tensor]:
    gradients = call.new_gradients(arguments[:3], Extras(*arguments[_EXTRAS_AT]), arguments[_OPTIONS_AT][0],
                                   Wanted(*arguments[-1]))
    return [gradient for gradient in gradients if gradient is not None]


def _save(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Tensor, Tensor]) -> None:
    tensors, ctx.options = inputs[:_EXTRAS_AT.stop], list(inputs[_EXTRAS_AT.stop:])
    rng_state = ctx.options[_RNG_STATE]
    ctx.save_for_backward(*tensors, rng_state, *output)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, dout: OptionalTensor, dlse: OptionalTensor) -> Tuple[Any, ...]:
    *tensors, rng_state, out, lse = ctx.saved_tensors
    needs = dict(zip(("q", "k", "v", *ARRAYS), ctx.needs_input_grad))
    if needs["alibi_slopes"]:
        raise ValueError(NO_GRADIENT_OF_SLOPES)
    wanted = [needs[name] for name in Wanted._fields]
    options = [*ctx.options[:_RNG_STATE], rng_state, *ctx.options[_RNG_STATE + 1:]]
    computed = iter(torch.ops.cuflash.backward.default(*tensors, *options, out, lse, dout, dlse, wanted))
    gradients = {name: next(computed) for name, want in zip(Wanted._fields, wanted) if want}
    return (*(gradients.get(name) for name in needs), *[None] * len(options))


def _refuse_second_derivative(ctx: Any, *_: Any) -> None:
    raise RuntimeError("cuflash has no second derivatives: its backward pass cannot be differentiated again")


torch.library.register_autograd("cuflash::forward", _differentiate, setup_context=_save, lib=_library)
torch.library.register_autograd("cuflash::backward", _refuse_second_derivative, lib=_library)


def _register_autocast(device: str) -> None:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
        torch._C.DispatchKey.AutocastCUDA)

    def forward(*arguments: Any) -> Tuple[Tensor, Tensor]:
        inputs, extras = autocast.cast(arguments[:3], Extras(*arguments[_EXTRAS_AT]), device.lower())
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return torch.ops.cuflash.forward.default(*inputs, *extras, *arguments[_EXTRAS_AT.stop:])

    _library.impl("forward", forward, f"Autocast{device}")


for _device in ("CPU", "CUDA"):
    _register_autocast(_device)
