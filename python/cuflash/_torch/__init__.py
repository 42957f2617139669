"""Attention on PyTorch tensors.

    attention(), run()          here: arguments put into order, and the choice of a road
      function.run()            plain eager mode: autograd.Function, or nothing where no gradient is asked for
      operators.run()           whoever traces, compiles or intercepts: torch.ops.cuflash
        call.forward/backward   both: results allocated, stream found, `_core` called
"""

from __future__ import annotations

from typing import Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

if not hasattr(torch.library, "register_autograd"):
    raise ImportError(f"cuflash needs PyTorch 2.4 or newer; this is {torch.__version__}")

from torch.compiler import is_compiling

from .._values import LARGEST, LARGEST_EXTENT, flag, number, optional_number, pair, whole
from . import autocast, function, operators, seeds
from .arguments import NO_EXTRAS, Extras, Inputs, OptionalTensor, extras, numbers
from .road import is_plain, named, require_one_device

__all__ = ["attention"]


def attention(q: Tensor, k: OptionalTensor = None, v: OptionalTensor = None, *, layout: str = "bhsd",
              bias: OptionalTensor = None, mask: OptionalTensor = None, sink: OptionalTensor = None,
              alibi_slopes: OptionalTensor = None, cu_seqlens_q: OptionalTensor = None,
              cu_seqlens_k: OptionalTensor = None, seqlens_q: Union[Tensor, Sequence[int], None] = None,
              seqlens_k: Union[Tensor, Sequence[int], None] = None,
              max_seqlen_q: int = 0, max_seqlen_k: int = 0, scale: Optional[float] = None, causal: bool = False,
              top_left: bool = False, window: Tuple[int, int] = (-1, -1), softcap: float = 0.0, dropout_p: float = 0.0,
              dropout_seed: Optional[seeds.Seed] = None, dropout_offset: int = 0, deterministic: bool = False,
              num_threads: int = 0, return_lse: bool = False) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """softmax(scale * q k^T + ...) v, with gradients of q, k, v, bias, sink and through lse.

    Args:
        q: [B, Hq, Sq, D] (layout "bhsd"), [B, Sq, Hq, D] ("bshd") or [Tq, Hq, D] ("thd"): f16, bf16, f32 or f64.
            Without k it is qkv: [B, S, 3, H, D] or [T, 3, H, D].
        k: as q, with Hk heads (Hq is a multiple of Hk) and Sk rows. Without v it is kv: [B, Sk, 2, Hk, D] or
            [Tk, 2, Hk, D].
        v: as k, with a head size Dv of its own.
        layout: the order of the dimensions of q, k, v and out.
        bias: added to the scores; [B or 1, Hq or 1, Sq or 1, Sk], leading dimensions may be left out.
        mask: bool, shaped as bias; False hides the key.
        sink: [Hq], a logit of each head that takes part in its softmax alone.
        alibi_slopes: f32 [Hq] or [B, Hq]; has no gradient.
        cu_seqlens_q, cu_seqlens_k: i32 [B + 1], with layout "thd": sequence b is rows cu[b] .. cu[b + 1].
        seqlens_q, seqlens_k: i32 [B], or numbers in a list, with the other layouts: only so many rows of each sequence
            exist.
        max_seqlen_q, max_seqlen_k: with layout "thd", upper bounds of the lengths; needed on CUDA.
        scale: 1/sqrt(D) where it is None.
        causal: query i sees the keys up to i + Sk - Sq; with top_left, up to i.
        window: how many keys to the left and to the right of that one are seen; -1: all.
        softcap: where it is above 0, scores become softcap * tanh(score / softcap).
        dropout_p: the probability to drop a probability, in [0, 1).
        dropout_seed, dropout_offset: which scores are dropped is a function of these two numbers in [0, 2**64); a
            seed of None draws both from PyTorch's generator of the device. An i64 tensor [2] on the CPU is both.
        deterministic: gradients repeat bit for bit on CUDA as well.
        num_threads: on the CPU; 0 takes as many as PyTorch uses.
        return_lse: give lse, too: the logarithm of the sum of exponentials of each row, [B, Hq, Sq] or packed [Hq, Tq].

    Returns:
        out in the layout and type of q, with Dv in place of D; or (out, lse).
    """
    others = extras(alibi_slopes, bias, mask, sink, cu_seqlens_q, cu_seqlens_k,
                    numbers(seqlens_q, q, "seqlens_q"), numbers(seqlens_k, q, "seqlens_k"))
    return run((q, k, v), others, layout, scale, causal, top_left, window, softcap, dropout_p, dropout_seed,
               dropout_offset, max_seqlen_q, max_seqlen_k, deterministic, num_threads, return_lse)


def run(inputs: Inputs, extras: Extras, layout: str, scale: Optional[float], causal: bool, top_left: bool,
        window: Tuple[int, int], softcap: float, dropout_p: float, dropout_seed: Optional[seeds.Seed],
        dropout_offset: int, max_seqlen_q: int, max_seqlen_k: int, deterministic: bool, num_threads: int,
        return_lse: bool) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """attention() with everything given, and in the shape that the roads want."""
    q = inputs[0]
    left, right = window if type(window) is tuple and len(window) == 2 else pair(window, "window")
    if not is_compiling() and not (
            type(left) is type(right) is type(num_threads) is type(max_seqlen_q) is type(max_seqlen_k) is int
            and -1 <= left <= LARGEST >= right >= -1 and 0 <= num_threads <= LARGEST_EXTENT
            and 0 <= max_seqlen_q <= LARGEST_EXTENT >= max_seqlen_k >= 0 and type(softcap) is type(dropout_p) is float
            and dropout_p == dropout_p and (scale is None or type(scale) is float)
            and type(causal) is type(top_left) is type(return_lse) is type(deterministic) is bool):
        left, right = pair(window, "window")
        num_threads = whole(num_threads, "num_threads", 0, LARGEST_EXTENT)
        max_seqlen_q = whole(max_seqlen_q, "max_seqlen_q", 0, LARGEST_EXTENT)
        max_seqlen_k = whole(max_seqlen_k, "max_seqlen_k", 0, LARGEST_EXTENT)
        softcap, dropout_p = number(softcap, "softcap"), number(dropout_p, "dropout_p")
        scale, causal, top_left = optional_number(scale, "scale"), flag(causal, "causal"), flag(top_left, "top_left")
        return_lse, deterministic = flag(return_lse, "return_lse"), flag(deterministic, "deterministic")
    if extras.alibi_slopes is not None and extras.alibi_slopes.requires_grad and torch.is_grad_enabled():
        raise ValueError("alibi_slopes requires a gradient, and there is none for it; pass alibi_slopes.detach()")
    plain = is_plain(inputs, extras)
    if not plain:
        require_one_device(named(inputs, extras))
    if not plain or _is_any_autocast_enabled():  # to ask for a device by its name takes longer
        device = "cuda" if q.is_cuda else "cpu"
        if torch.is_autocast_enabled(device):
            inputs, extras = autocast.cast(inputs, extras, device)
    seed, offset, rng_state = 0, 0, None
    if dropout_p > 0:
        if dropout_seed is None:
            dropout_seed = seeds.draw(q.device) if plain else seeds.draw_traceable()
        else:
            dropout_seed = seeds.with_offset(dropout_seed, dropout_offset)
        if plain:
            seed, offset = seeds.as_numbers(dropout_seed)
        else:
            rng_state = seeds.as_tensor(dropout_seed)
    options = (layout, scale, bool(causal), bool(top_left), left, right, softcap, dropout_p, seed, offset, max_seqlen_q,
               max_seqlen_k)
    execution = (num_threads, bool(deterministic) or torch.are_deterministic_algorithms_enabled())
    if plain:
        out, lse = function.run(inputs, extras, options, execution, return_lse)
    else:
        out, lse = operators.run(inputs, extras, options, rng_state, execution)
    return (out, lse) if return_lse else out


def draw_seed(q: Tensor) -> seeds.Seed:
    """What attention() draws for this q where it is not given a seed."""
    return seeds.draw(q.device) if is_plain((q, None, None), NO_EXTRAS) else seeds.draw_traceable()


_is_any_autocast_enabled = torch._C._is_any_autocast_enabled
