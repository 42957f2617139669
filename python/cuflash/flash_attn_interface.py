"""The functions of flash_attn 2.x: same names, order of arguments, defaults and results.

    from cuflash import flash_attn_func        # or: import cuflash as flash_attn

Keyword arguments after `*` are cuflash's own. Where results differ on purpose, docs/python.md says how and why.
"""

from __future__ import annotations

from typing import Optional, Tuple, Union

from torch import Tensor

from . import _torch
from ._torch.arguments import Extras, Inputs, OptionalTensor, extras
from ._torch.dropout_matrix import signed_probabilities
from ._torch.seeds import Seed

__all__ = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
           "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func"]

Result = Union[Tensor, Tuple[Tensor, Tensor, Tensor]]
Window = Tuple[int, int]


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                    causal: bool = False, window_size: Window = (-1, -1), softcap: float = 0.0,
                    alibi_slopes: OptionalTensor = None, deterministic: bool = False, return_attn_probs: bool = False,
                    *, bias: OptionalTensor = None, mask: OptionalTensor = None, sink: OptionalTensor = None,
                    seqlens_q: OptionalTensor = None, seqlens_k: OptionalTensor = None,
                    dropout_seed: Optional[Seed] = None) -> Result:
    """Attention on dense tensors.

    Args:
        q: [B, Sq, Hq, D], f16, bf16, f32 or f64.
        k: [B, Sk, Hk, D]; Hq is a multiple of Hk, and query head h reads head h // (Hq // Hk).
        v: [B, Sk, Hk, Dv].
        dropout_p: the probability to drop a probability; 0.0 when not training.
        softmax_scale: 1/sqrt(D) where it is None.
        causal: query i sees the keys up to i + Sk - Sq: the last query stands at the last key.
        window_size: (left, right): query i sees the keys from i + Sk - Sq - left to i + Sk - Sq + right; -1: all.
        softcap: where it is above 0, scores become softcap * tanh(score / softcap).
        alibi_slopes: f32 [Hq] or [B, Hq]; the score gets -slope * |i + Sk - Sq - j|.
        deterministic: gradients repeat bit for bit on CUDA as well; on the CPU they always do.
        return_attn_probs: give (out, softmax_lse, S_dmask), see below.
        bias: [B or 1, Hq or 1, Sq or 1, Sk], added to the scores; has a gradient.
        mask: bool, shaped as bias; False hides the key.
        sink: [Hq], a logit of each head that takes part in its softmax alone; has a gradient.
        seqlens_q, seqlens_k: i32 [B], the rows of each sequence that exist.
        dropout_seed: a number, or (seed, offset); None draws them from PyTorch's generator of the device.

    Returns:
        out [B, Sq, Hq, Dv]; with return_attn_probs also softmax_lse [B, Hq, Sq], which has a gradient, and S_dmask:
        the probabilities [B, Hq, Sq, Sk], negative where they were dropped. It is empty without dropout, and has no
        gradient; it is there for tests and takes a pass over the keys for each Dv of them.
    """
    return _run((q, k, v), extras(alibi_slopes, bias, mask, sink, None, None, seqlens_q, seqlens_k), "bshd", 0, 0,
                dropout_p, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs,
                dropout_seed)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                             causal: bool = False, window_size: Window = (-1, -1), softcap: float = 0.0,
                             alibi_slopes: OptionalTensor = None, deterministic: bool = False,
                             return_attn_probs: bool = False, *, bias: OptionalTensor = None,
                             mask: OptionalTensor = None, sink: OptionalTensor = None,
                             seqlens_q: OptionalTensor = None, seqlens_k: OptionalTensor = None,
                             dropout_seed: Optional[Seed] = None) -> Result:
    """flash_attn_func with keys and values in one tensor; the gradient is written straight into one like it.

    Args:
        q: [B, Sq, Hq, D].
        kv: [B, Sk, 2, Hk, D].
    """
    return _run((q, kv, None), extras(alibi_slopes, bias, mask, sink, seqlens_q=seqlens_q, seqlens_k=seqlens_k), "bshd",
                0, 0, dropout_p, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs,
                dropout_seed)


def flash_attn_qkvpacked_func(qkv: Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                              causal: bool = False, window_size: Window = (-1, -1), softcap: float = 0.0,
                              alibi_slopes: OptionalTensor = None, deterministic: bool = False,
                              return_attn_probs: bool = False, *, bias: OptionalTensor = None,
                              mask: OptionalTensor = None, sink: OptionalTensor = None,
                              seqlens_q: OptionalTensor = None, seqlens_k: OptionalTensor = None,
                              dropout_seed: Optional[Seed] = None) -> Result:
    """flash_attn_func with all three in one tensor; the gradient is written straight into one like it.

    Args:
        qkv: [B, S, 3, H, D].
    """
    return _run((qkv, None, None), extras(alibi_slopes, bias, mask, sink, seqlens_q=seqlens_q, seqlens_k=seqlens_k),
                "bshd", 0, 0, dropout_p, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs,
                dropout_seed)


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                           max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
                           softmax_scale: Optional[float] = None, causal: bool = False,
                           window_size: Window = (-1, -1), softcap: float = 0.0, alibi_slopes: OptionalTensor = None,
                           deterministic: bool = False, return_attn_probs: bool = False,
                           block_table: OptionalTensor = None, *, bias: OptionalTensor = None,
                           mask: OptionalTensor = None, sink: OptionalTensor = None,
                           dropout_seed: Optional[Seed] = None) -> Result:
    """Attention on sequences that stand one after the other in one tensor. Options are those of flash_attn_func.

    Args:
        q: [total_q, Hq, D].
        k: [total_k, Hk, D].
        v: [total_k, Hk, Dv].
        cu_seqlens_q, cu_seqlens_k: i32 [B + 1]; sequence b is the rows cu_seqlens[b] .. cu_seqlens[b + 1].
        max_seqlen_q, max_seqlen_k: upper bounds of the lengths.
        block_table: pages of keys and values; not supported, must be None.

    Returns:
        out [total_q, Hq, Dv]; with return_attn_probs also softmax_lse [Hq, total_q] and S_dmask
        [B, Hq, max_seqlen_q, max_seqlen_k].
    """
    if block_table is not None:
        raise NotImplementedError("block_table: flash_attn_varlen_func of cuflash does not read pages of keys; "
                                  "gather them into k and v [total_k, Hk, D] first")
    return _run((q, k, v), extras(alibi_slopes, bias, mask, sink, cu_seqlens_q, cu_seqlens_k), "thd", max_seqlen_q,
                max_seqlen_k, dropout_p, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs,
                dropout_seed)


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                                    max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
                                    softmax_scale: Optional[float] = None, causal: bool = False,
                                    window_size: Window = (-1, -1), softcap: float = 0.0,
                                    alibi_slopes: OptionalTensor = None, deterministic: bool = False,
                                    return_attn_probs: bool = False, *, bias: OptionalTensor = None,
                                    mask: OptionalTensor = None, sink: OptionalTensor = None,
                                    dropout_seed: Optional[Seed] = None) -> Result:
    """flash_attn_varlen_func with keys and values in one tensor.

    Args:
        q: [total_q, Hq, D].
        kv: [total_k, 2, Hk, D].
    """
    return _run((q, kv, None), extras(alibi_slopes, bias, mask, sink, cu_seqlens_q, cu_seqlens_k), "thd", max_seqlen_q,
                max_seqlen_k, dropout_p, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs,
                dropout_seed)


def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0,
                                     softmax_scale: Optional[float] = None, causal: bool = False,
                                     window_size: Window = (-1, -1), softcap: float = 0.0,
                                     alibi_slopes: OptionalTensor = None, deterministic: bool = False,
                                     return_attn_probs: bool = False, *, bias: OptionalTensor = None,
                                     mask: OptionalTensor = None, sink: OptionalTensor = None,
                                     dropout_seed: Optional[Seed] = None) -> Result:
    """flash_attn_varlen_func with all three in one tensor and one set of lengths.

    Args:
        qkv: [total, 3, H, D].
    """
    return _run((qkv, None, None), extras(alibi_slopes, bias, mask, sink, cu_seqlens, cu_seqlens), "thd", max_seqlen,
                max_seqlen, dropout_p, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs,
                dropout_seed)


def _run(inputs: Inputs, extras: Extras, layout: str, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float,
         scale: Optional[float], causal: bool, window: Window, softcap: float, deterministic: bool,
         return_attn_probs: bool, dropout_seed: Optional[Seed]) -> Result:
    softcap = softcap if softcap > 0 else 0.0  # flash_attn takes a softcap below 0 for none
    if return_attn_probs:
        return _run_with_probabilities(inputs, extras, layout, max_seqlen_q, max_seqlen_k, dropout_p, scale, causal,
                                       window, softcap, deterministic, dropout_seed)
    return _torch.run(inputs, extras, layout, scale, causal, False, window, softcap, dropout_p, dropout_seed, 0,
                      max_seqlen_q, max_seqlen_k, deterministic, 0, False)


def _run_with_probabilities(inputs: Inputs, extras: Extras, layout: str, max_seqlen_q: int, max_seqlen_k: int,
                            dropout_p: float, scale: Optional[float], causal: bool, window: Window, softcap: float,
                            deterministic: bool, dropout_seed: Optional[Seed]) -> Tuple[Tensor, Tensor, Tensor]:
    if dropout_p > 0 and dropout_seed is None:
        dropout_seed = _torch.draw_seed(inputs[0])  # two calls share it: that of the caller, and the one for S_dmask

    def attend(inputs: Inputs, dropout_p: float) -> Tuple[Tensor, Tensor]:
        return _torch.run(inputs, extras, layout, scale, causal, False, window, softcap, dropout_p, dropout_seed, 0,
                          max_seqlen_q, max_seqlen_k, deterministic, 0, True)

    out, lse = attend(inputs, dropout_p)
    if dropout_p == 0:
        return out, lse, out.new_empty(0)
    return out, lse, signed_probabilities(inputs, extras, layout, max_seqlen_q, max_seqlen_k, dropout_p, attend)
