"""Attention on PyTorch tensors.

    attention(), run()          here: check the arguments and choose a path
      autograd.run()            the eager path: autograd.Function, or a direct call if nothing requires a gradient
      operators.run()           under tracers, compilers and dispatch modes: torch.ops.cuflash
        call.forward/backward   both paths: allocate results, find the stream, call `_core`
"""

from __future__ import annotations

from typing import Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

if not hasattr(torch.library, "register_autograd"):
    raise ImportError(f"cuflash needs PyTorch 2.4 or newer; this is {torch.__version__}")

from torch.compiler import is_compiling

from .._arrays import MaskSummary
from .._options import check
from .._values import LARGEST, LARGEST_EXTENT, flag, pair
from . import autocast, autograd, operators, seeds
from .arguments import NO_EXTRAS, Extras, Inputs, OptionalTensor, extras, numbers
from .autograd import apply_for_out, apply_with_lse
from .call import plain_call
from .eager import is_any_autocast_enabled, is_eager, is_plain, named, require_one_device

__all__ = ["attention"]


def attention(q: Tensor, k: OptionalTensor = None, v: OptionalTensor = None, *, layout: str = "bhsd",
              bias: OptionalTensor = None, mask: Union[Tensor, MaskSummary, None] = None, sink: OptionalTensor = None,
              alibi_slopes: OptionalTensor = None, cu_seqlens_q: OptionalTensor = None,
              cu_seqlens_k: OptionalTensor = None, seqlens_q: Union[Tensor, Sequence[int], None] = None,
              seqlens_k: Union[Tensor, Sequence[int], None] = None,
              max_seqlen_q: int = 0, max_seqlen_k: int = 0, scale: Optional[float] = None, causal: bool = False,
              top_left: bool = False, window: Tuple[int, int] = (-1, -1), softcap: float = 0.0, dropout_p: float = 0.0,
              dropout_seed: Optional[seeds.Seed] = None, dropout_offset: int = 0, deterministic: bool = False,
              num_threads: int = 0, return_lse: bool = False) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """softmax(scale * q k^T + ...) v, differentiable in q, k, v, bias and sink, and through lse.

    Args:
        q: [B, Hq, Sq, D] (layout "bhsd"), [B, Sq, Hq, D] ("bshd") or [Tq, Hq, D] ("thd"): f16, bf16, f32 or f64.
            Without k it is qkv: [B, S, 3, H, D] or [T, 3, H, D].
        k: as q, with Hk heads (Hq is a multiple of Hk) and Sk rows. Without v it is kv: [B, Sk, 2, Hk, D] or
            [Tk, 2, Hk, D].
        v: as k, with its own head size Dv.
        layout: the order of the dimensions of q, k, v and out.
        bias: added to the scores; [B or 1, Hq or 1, Sq or 1, Sk], leading dimensions may be left out.
        mask: bool, shaped as bias; False hides the key. Or a MaskSummary of it.
        sink: [Hq], one logit per head that enters the softmax's denominator and has no value.
        alibi_slopes: f32 [Hq] or [B, Hq]; not differentiable.
        cu_seqlens_q, cu_seqlens_k: i32 [B + 1], with layout "thd": sequence b is rows cu[b] .. cu[b + 1].
        seqlens_q, seqlens_k: i32 [B], or a list of ints, with the other layouts: how many rows of each sequence exist.
        max_seqlen_q, max_seqlen_k: with layout "thd", upper bounds of the lengths; required on CUDA.
        scale: None is 1/sqrt(D).
        causal: query i sees the keys up to i + Sk - Sq; with top_left, up to i.
        window: how many keys to the left and to the right of that one are visible; -1: all.
        softcap: above 0, scores become softcap * tanh(score / softcap).
        dropout_p: the probability of dropping a weight, in [0, 1).
        dropout_seed, dropout_offset: two numbers in [0, 2**64) that select the dropped weights; a seed of None draws
            both from PyTorch's generator of the device. An i64 tensor [2] on the CPU holds both.
        deterministic: gradients repeat bit for bit on CUDA as well.
        num_threads: on the CPU; 0 uses as many as PyTorch.
        return_lse: also return lse, the logarithm of the softmax's denominator: [B, Hq, Sq], or packed [Hq, Tq].

    Returns:
        out in the layout and type of q, with Dv in place of D; or (out, lse).
    """
    if (bias is mask is sink is alibi_slopes is cu_seqlens_q is cu_seqlens_k is seqlens_q is seqlens_k is None
            and not is_compiling()):
        result = plain_call(q, k, v, layout, scale, causal, top_left, window, softcap, dropout_p, max_seqlen_q,
                            max_seqlen_k, deterministic, num_threads, return_lse,
                            apply_with_lse if return_lse is True else apply_for_out)
        if result is not None:
            return result
    if isinstance(mask, MaskSummary) and layout in ("bhsd", "bshd"):
        rows = q if k is None else k
        mask.words_for(rows.shape[2 if layout == "bhsd" else 1])
    others = extras(alibi_slopes, bias, mask, sink, cu_seqlens_q, cu_seqlens_k,
                    numbers(seqlens_q, q, "seqlens_q"), numbers(seqlens_k, q, "seqlens_k"))
    return run((q, k, v), others, layout, scale, causal, top_left, window, softcap, dropout_p, dropout_seed,
               dropout_offset, max_seqlen_q, max_seqlen_k, deterministic, num_threads, return_lse, is_compiling())


def run(inputs: Inputs, extras: Extras, layout: str, scale: Optional[float], causal: bool, top_left: bool,
        window: Tuple[int, int], softcap: float, dropout_p: float, dropout_seed: Optional[seeds.Seed],
        dropout_offset: int, max_seqlen_q: int, max_seqlen_k: int, deterministic: bool, num_threads: int,
        return_lse: bool, compiling: bool) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """attention() with every argument given, in the form that both paths take. compiling: see torch.compiler."""
    q = inputs[0]
    left, right = window if type(window) is tuple and len(window) == 2 else pair(window, "window")
    if not compiling and not (
            type(left) is type(right) is type(num_threads) is type(max_seqlen_q) is type(max_seqlen_k) is int
            and -1 <= left <= LARGEST >= right >= -1 and 0 <= num_threads <= LARGEST_EXTENT
            and 0 <= max_seqlen_q <= LARGEST_EXTENT >= max_seqlen_k >= 0 and type(softcap) is type(dropout_p) is float
            and dropout_p == dropout_p and (scale is None or type(scale) is float)
            and type(causal) is type(top_left) is type(return_lse) is type(deterministic) is bool):
        left, right = pair(window, "window")
        return_lse = flag(return_lse, "return_lse")
        scale, causal, top_left, softcap, dropout_p, max_seqlen_q, max_seqlen_k, num_threads, deterministic = check(
            scale=scale, causal=causal, top_left=top_left, softcap=softcap, dropout_p=dropout_p,
            max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, num_threads=num_threads, deterministic=deterministic)
    if extras.alibi_slopes is not None and extras.alibi_slopes.requires_grad and torch.is_grad_enabled():
        raise ValueError(operators.NO_GRADIENT_OF_SLOPES)
    eager = not compiling and is_plain(inputs, extras)
    if not eager:
        require_one_device(named(inputs, extras))
    if not eager or is_any_autocast_enabled():  # asking for one device by name takes longer
        device = "cuda" if q.is_cuda else "cpu"
        if torch.is_autocast_enabled(device):
            inputs, extras = autocast.cast(inputs, extras, device)
    seed, offset, rng_state = 0, 0, None
    if dropout_p > 0:
        if dropout_seed is None:
            dropout_seed = seeds.draw(q.device) if eager else seeds.draw_traceable()
        else:
            dropout_seed = seeds.with_offset(dropout_seed, dropout_offset)
        if eager:
            seed, offset = seeds.as_numbers(dropout_seed)
        else:
            rng_state = seeds.as_tensor(dropout_seed)
    options = (layout, scale, bool(causal), bool(top_left), left, right, softcap, dropout_p, seed, offset, max_seqlen_q,
               max_seqlen_k)
    if eager:
        execution = (num_threads, deterministic or _get_deterministic_algorithms())
        out, lse = autograd.run(inputs, extras, options, execution, return_lse)
    else:
        execution = (num_threads, bool(deterministic) or torch.are_deterministic_algorithms_enabled())
        out, lse = operators.run(inputs, extras, options, rng_state, execution)
    return (out, lse) if return_lse else out


def draw_seed(q: Tensor) -> seeds.Seed:
    """The seed that attention() draws for this q by default."""
    return seeds.draw(q.device) if is_eager((q, None, None), NO_EXTRAS) else seeds.draw_traceable()


_get_deterministic_algorithms = torch._C._get_deterministic_algorithms
