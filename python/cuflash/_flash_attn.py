"""The functions of flash_attn 2.x: same names, order of arguments, defaults and results.

    from cuflash import flash_attn_func        # or: import cuflash as flash_attn

Keyword arguments after `*` are cuflash's own. docs/python.md lists the results that differ on purpose, and why.

Every signature is written out: callers, their editors and type checkers see flash_attn's own.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, NoReturn, Optional, Tuple, Union

from torch import Tensor
from torch.compiler import is_compiling

from . import _torch
from ._torch.arguments import Extras, Inputs, OptionalTensor, extras, require_given
from ._torch.autograd import apply_for_out
from ._torch.call import plain_call
from ._torch.dropout_matrix import signed_probabilities
from ._torch.kv_cache import attention_with_cache
from ._torch.seeds import Seed
from ._values import flag, number, pair

__all__ = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
           "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache"]

Result = Union[Tensor, Tuple[Tensor, Tensor, Tensor]]
Window = Tuple[int, int]

_NAMES = {"scale": "softmax_scale", "window": "window_size", "return_lse": "return_softmax_lse"}
"""The name of an argument in messages -> flash_attn's name; functions whose tensors have other names extend it."""
_KV = {**_NAMES, "k": "kv"}
_QKV = {**_NAMES, "q": "qkv"}
_PACKED_QKV = {**_QKV, "cu_seqlens_q": "cu_seqlens", "cu_seqlens_k": "cu_seqlens", "max_seqlen_q": "max_seqlen",
               "max_seqlen_k": "max_seqlen"}
_PAGES = {**_NAMES, "k_cache": "k", "v_cache": "v", "cache_seqlens": "cu_seqlens_k"}


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
        dropout_p: the probability of dropping a weight; 0.0 when not training.
        softmax_scale: None is 1/sqrt(D).
        causal: query i sees the keys up to i + Sk - Sq: the last query is aligned with the last key.
        window_size: (left, right): query i sees the keys from i + Sk - Sq - left to i + Sk - Sq + right; -1: all.
        softcap: above 0, scores become softcap * tanh(score / softcap).
        alibi_slopes: f32 [Hq] or [B, Hq]; slope * |i + Sk - Sq - j| is subtracted from the score.
        deterministic: gradients repeat bit for bit on CUDA as well; on the CPU they always do.
        return_attn_probs: return (out, softmax_lse, S_dmask), see below.
        bias: [B or 1, Hq or 1, Sq or 1, Sk], added to the scores; differentiable.
        mask: bool, shaped as bias; False hides the key.
        sink: [Hq], one logit per head that enters the softmax's denominator and has no value; differentiable.
        seqlens_q, seqlens_k: i32 [B], the rows of each sequence that exist.
        dropout_seed: a number, or (seed, offset); None draws them from PyTorch's generator of the device.

    Returns:
        out [B, Sq, Hq, Dv]; with return_attn_probs also softmax_lse [B, Hq, Sq], which is differentiable, and S_dmask:
        the probabilities [B, Hq, Sq, Sk], negative where they were dropped. S_dmask is empty without dropout and not
        differentiable; it exists for tests, and costs two passes over the keys for every Dv of them.
    """
    if (alibi_slopes is bias is mask is sink is seqlens_q is seqlens_k is None and return_attn_probs is False
            and not is_compiling()):
        result = plain_call(q, k, v, "bshd", softmax_scale, causal, False, window_size, softcap, dropout_p, 0, 0,
                            deterministic, 0, False, apply_for_out)
        if result is not None:
            return result
    if q is None or k is None or v is None:
        require_given(q=q, k=k, v=v)
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
    """flash_attn_func with keys and values in one tensor; their gradient is written straight into one like it.

    Args:
        q: [B, Sq, Hq, D].
        kv: [B, Sk, 2, Hk, D].
    """
    if (alibi_slopes is bias is mask is sink is seqlens_q is seqlens_k is None and return_attn_probs is False
            and not is_compiling()):
        result = plain_call(q, kv, None, "bshd", softmax_scale, causal, False, window_size, softcap, dropout_p, 0, 0,
                            deterministic, 0, False, apply_for_out)
        if result is not None:
            return result
    if q is None or kv is None:
        require_given(q=q, kv=kv)
    return _run((q, kv, None), extras(alibi_slopes, bias, mask, sink, None, None, seqlens_q, seqlens_k), "bshd", 0, 0,
                dropout_p, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs,
                dropout_seed, _KV)


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
    if (alibi_slopes is bias is mask is sink is seqlens_q is seqlens_k is None and return_attn_probs is False
            and not is_compiling()):
        result = plain_call(qkv, None, None, "bshd", softmax_scale, causal, False, window_size, softcap, dropout_p, 0, 0,
                            deterministic, 0, False, apply_for_out)
        if result is not None:
            return result
    if qkv is None:
        require_given(qkv=qkv)
    return _run((qkv, None, None), extras(alibi_slopes, bias, mask, sink, None, None, seqlens_q, seqlens_k), "bshd", 0,
                0, dropout_p, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs,
                dropout_seed, _QKV)


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                           max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
                           softmax_scale: Optional[float] = None, causal: bool = False,
                           window_size: Window = (-1, -1), softcap: float = 0.0, alibi_slopes: OptionalTensor = None,
                           deterministic: bool = False, return_attn_probs: bool = False,
                           block_table: OptionalTensor = None, *, bias: OptionalTensor = None,
                           mask: OptionalTensor = None, sink: OptionalTensor = None,
                           dropout_seed: Optional[Seed] = None) -> Result:
    """Attention on sequences packed one after the other into one tensor. Options are those of flash_attn_func.

    Args:
        q: [total_q, Hq, D].
        k: [total_k, Hk, D].
        v: [total_k, Hk, Dv].
        cu_seqlens_q, cu_seqlens_k: i32 [B + 1]; sequence b is the rows cu_seqlens[b] .. cu_seqlens[b + 1].
        max_seqlen_q, max_seqlen_k: upper bounds of the lengths.
        block_table: i32 [B, max_pages]: k and v are pages [pages, page_size, Hk, D] and [pages, page_size, Hk, Dv], and
            cu_seqlens_k gives the number of rows that each sequence has in its pages. Supports neither dropout, bias
            and mask nor gradients.

    Returns:
        out [total_q, Hq, Dv]; with return_attn_probs also softmax_lse [Hq, total_q] and S_dmask
        [B, Hq, max_seqlen_q, max_seqlen_k].
    """
    if block_table is not None and (number(dropout_p, "dropout_p") > 0 or bias is not None or mask is not None):
        raise NotImplementedError("block_table: dropout, bias and mask are not supported with pages; gather them into "
                                  "k and v [total_k, Hk, D] first")
    if q is None or k is None or v is None or cu_seqlens_q is None or cu_seqlens_k is None:
        require_given(q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    if block_table is not None:
        require_given(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
        if cu_seqlens_k.dim() != 1:
            raise ValueError(f"cu_seqlens_k: has {cu_seqlens_k.dim()} dimensions; it must have one: [B + 1]")
        out, lse = _with_names(
            _PAGES, attention_with_cache, q, k, v, cache_seqlens=cu_seqlens_k[1:] - cu_seqlens_k[:-1],
            block_table=block_table, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q, causal=causal,
            window=window_size, sink=sink, scale=softmax_scale, softcap=_softcap(softcap), alibi_slopes=alibi_slopes,
            layout="bshd", return_lse=True)
        return (out, lse, out.new_empty(0)) if flag(return_attn_probs, "return_attn_probs") else out
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
    if q is None or kv is None or cu_seqlens_q is None or cu_seqlens_k is None:
        require_given(q=q, kv=kv, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    return _run((q, kv, None), extras(alibi_slopes, bias, mask, sink, cu_seqlens_q, cu_seqlens_k), "thd", max_seqlen_q,
                max_seqlen_k, dropout_p, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs,
                dropout_seed, _KV)


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
    if not isinstance(cu_seqlens, Tensor) or qkv is None:
        require_given(qkv=qkv, cu_seqlens=cu_seqlens)
    return _run((qkv, None, None), extras(alibi_slopes, bias, mask, sink, cu_seqlens, cu_seqlens), "thd", max_seqlen,
                max_seqlen, dropout_p, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs,
                dropout_seed, _PACKED_QKV)


def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: OptionalTensor = None,
                            v: OptionalTensor = None, rotary_cos: OptionalTensor = None,
                            rotary_sin: OptionalTensor = None, cache_seqlens: Union[int, Tensor, None] = None,
                            cache_batch_idx: OptionalTensor = None, cache_leftpad: OptionalTensor = None,
                            block_table: OptionalTensor = None, softmax_scale: Optional[float] = None,
                            causal: bool = False, window_size: Window = (-1, -1), softcap: float = 0.0,
                            rotary_interleaved: bool = True, alibi_slopes: OptionalTensor = None, num_splits: int = 0,
                            return_softmax_lse: bool = False, *,
                            sink: OptionalTensor = None) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """Appends k and v to a cache in place, then attends q to everything its sequences hold. It has no gradient.

    cuflash.attention_with_cache does the same for packed queries and other layouts.

    Args:
        q: [B, Sq, Hq, D]: the last Sq positions of each sequence after the append.
        k_cache, v_cache: [B_cache, S, Hk, D] and [B_cache, S, Hk, Dv]; with block_table [pages, page_size, Hk, D] and
            [pages, page_size, Hk, Dv], of any page size. v_cache may be a slice k_cache[..., :Dv]; v is then None.
        k, v: [B, Sn, Hk, D] and [B, Sn, Hk, Dv], written from row cache_seqlens on. None: nothing is appended.
        rotary_cos, rotary_sin: [positions, R / 2], type of q or f32, with k: rotate the first R elements of row i of k
            by position cache_seqlens + i, and those of query i likewise if causal or a window is set; otherwise all
            queries by cache_seqlens. q then has as many rows as k.
        cache_seqlens: i32 [B], the rows of each sequence before the append; an int applies to every sequence, None
            means the whole cache if nothing is appended.
        cache_batch_idx: i32 [B], the entry of each sequence; None: entry b.
        cache_leftpad: i32 [B], rows at the start of each sequence that hold no token.
        block_table: i32 [B, max_pages].
        softmax_scale, causal, window_size, softcap, alibi_slopes, sink: as in flash_attn_func.
        rotary_interleaved: elements 2 i and 2 i + 1 make a pair; otherwise i and i + R / 2.
        num_splits: how many ranges of keys each sequence is split into; 0 picks what fills the device.
        return_softmax_lse: return (out, softmax_lse).

    Returns:
        out [B, Sq, Hq, Dv]; with return_softmax_lse also softmax_lse [B, Hq, Sq].
    """
    if rotary_cos is not None:
        _require_positions_of_flash_attn(q, k, cache_leftpad)
    window_size = window_size if type(window_size) is tuple else pair(window_size, "window_size")
    in_order = (causal if type(causal) is bool else flag(causal, "causal")) or window_size != (-1, -1)
    return _with_names(
        _NAMES, attention_with_cache, q, k_cache, v_cache, k, v, cache_seqlens=cache_seqlens,
        block_table=block_table, cache_batch_idx=cache_batch_idx, cache_leftpad=cache_leftpad, rotary_cos=rotary_cos,
        rotary_sin=rotary_sin, rotary_interleaved=rotary_interleaved, rotary_one_position=not in_order, sink=sink,
        alibi_slopes=alibi_slopes, causal=causal, window=window_size, scale=softmax_scale, softcap=_softcap(softcap),
        layout="bshd", num_splits=num_splits, return_lse=return_softmax_lse)


def _require_positions_of_flash_attn(q: Tensor, k: OptionalTensor, cache_leftpad: OptionalTensor) -> None:
    """Raises if flash_attn rotates a query or a key by another position than its own."""
    other = "cuflash.attention_with_cache rotates each row by its own position"
    if k is None:
        raise ValueError(f"rotary_cos: needs k and v, whose rows are rotated with the queries; without them {other}")
    if cache_leftpad is not None:
        raise ValueError("rotary_cos: cannot be combined with cache_leftpad here: flash_attn counts positions from the "
                         f"start of the cache and not from its first token; {other}")
    require_given(q=q, k=k)
    if q.dim() == 4 and k.dim() == 4 and q.shape[1] != k.shape[1]:
        raise ValueError(f"rotary_cos: q has {q.shape[1]} rows and k has {k.shape[1]}; flash_attn rotates query i by "
                         f"the position of row i of k, which is not its own; pass as many rows of both; {other}")


def _run(inputs: Inputs, extras: Extras, layout: str, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float,
         scale: Optional[float], causal: bool, window: Window, softcap: float, deterministic: bool,
         return_attn_probs: bool, dropout_seed: Optional[Seed], names: Dict[str, str] = _NAMES) -> Result:
    if return_attn_probs is not False and flag(return_attn_probs, "return_attn_probs"):
        return _with_names(names, _run_with_probabilities, inputs, extras, layout, max_seqlen_q, max_seqlen_k,
                           number(dropout_p, "dropout_p"), scale, causal, window, _softcap(softcap), deterministic,
                           dropout_seed)
    if type(softcap) is not float or softcap != 0.0:
        softcap = _softcap(softcap)
    if is_compiling():
        return _torch.run(inputs, extras, layout, scale, causal, False, window, softcap, dropout_p, dropout_seed, 0,
                          max_seqlen_q, max_seqlen_k, deterministic, 0, False, True)
    try:  # as _with_names, whose stars cost time
        return _torch.run(inputs, extras, layout, scale, causal, False, window, softcap, dropout_p, dropout_seed, 0,
                          max_seqlen_q, max_seqlen_k, deterministic, 0, False, False)
    except (TypeError, ValueError) as error:
        _raise_renamed(error, names)


def _softcap(value: float) -> float:
    """To flash_attn, a softcap below 0 means none."""
    value = value if type(value) is float and value == value else number(value, "softcap")
    return value if value > 0 else 0.0


def _with_names(names: Dict[str, str], function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Calls the function; an error about an argument names it as the caller did."""
    if is_compiling():
        return function(*arguments, **options)
    try:
        return function(*arguments, **options)
    except (TypeError, ValueError) as error:
        _raise_renamed(error, names)


def _raise_renamed(error: Exception, names: Dict[str, str]) -> NoReturn:
    text = re.sub(r"^\w+(?=:| is )|(?<=, but )\w+(?= is on)", lambda n: names.get(n.group(), n.group()), str(error))
    if text == str(error):
        raise error
    raise type(error)(text) from None


def _run_with_probabilities(inputs: Inputs, extras: Extras, layout: str, max_seqlen_q: int, max_seqlen_k: int,
                            dropout_p: float, scale: Optional[float], causal: bool, window: Window, softcap: float,
                            deterministic: bool, dropout_seed: Optional[Seed]) -> Tuple[Tensor, Tensor, Tensor]:
    if dropout_p > 0 and dropout_seed is None:
        dropout_seed = _torch.draw_seed(inputs[0])  # shared by the caller's call and those for S_dmask

    def attend(inputs: Inputs, dropout_p: float) -> Tuple[Tensor, Tensor]:
        return _torch.run(inputs, extras, layout, scale, causal, False, window, softcap, dropout_p, dropout_seed, 0,
                          max_seqlen_q, max_seqlen_k, deterministic, 0, True, is_compiling())

    out, lse = attend(inputs, dropout_p)
    if dropout_p == 0:
        return out, lse, out.new_empty(0)
    return out, lse, signed_probabilities(inputs, extras, layout, max_seqlen_q, max_seqlen_k, dropout_p, attend)
