"""Hugging Face transformers: attn_implementation="cuflash".

    cuflash.register_transformers()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="cuflash")

It registers two functions: one computes attention, the other builds the mask. For the patterns that the library
computes itself (causal, sliding window, everything), the mask is only the padding, [batch, keys]; any other pattern
becomes a mask [batch, 1, queries, keys], as for PyTorch's attention.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Dict, Optional, Set, Tuple

import torch
from torch import Tensor

from ._torch import attention

try:
    from transformers import AttentionInterface, PreTrainedModel, masking_utils
except ImportError as error:
    raise ImportError("register_transformers() needs transformers 4.53 or newer") from error

__all__ = ["register_transformers"]

_NOT_GIVEN: Any = object()
_names: Set[str] = set()


def register_transformers(name: str = "cuflash") -> None:
    """Registers attn_implementation=name with transformers 4.53 or newer. Calling it twice is harmless."""
    AttentionInterface.register(name, attention_forward)
    masking_utils.AttentionMaskInterface.register(name, attention_mask)
    if name not in _names:
        _names.add(name)
        _accept_names()


def _accept_names() -> None:
    """Keeps transformers from looking on its hub for kernels of these names, as it does for every name with "flash"."""
    original = getattr(PreTrainedModel, "_check_and_adjust_attn_implementation", None)
    if original is None or hasattr(original, "_cuflash"):
        return

    @functools.wraps(original)
    def check(self: Any, attn_implementation: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(attn_implementation, str) and attn_implementation in _names:
            return attn_implementation
        return original(self, attn_implementation, *args, **kwargs)

    check._cuflash = True
    PreTrainedModel._check_and_adjust_attn_implementation = check


def attention_forward(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor,
                      attention_mask: Optional[Tensor], dropout: float = 0.0, scaling: Optional[float] = None,
                      sliding_window: Optional[int] = _NOT_GIVEN, softcap: Optional[float] = None,
                      is_causal: Optional[bool] = None, s_aux: Optional[Tensor] = None,
                      position_bias: Optional[Tensor] = None, **kwargs: Any) -> Tuple[Tensor, None]:
    """The attention function that models of transformers call.

    Args:
        query: [B, Hq, Sq, D]. key, value: [B, Hk, Sk, D] and [B, Hk, Sk, Dv]; heads are not repeated.
        attention_mask: None; padding [B, Sk], True for a token; or a full mask [B or 1, Hq or 1, Sq, Sk], True for a
            visible key, or numbers to add to the scores.
        sliding_window: a query sees itself and the sliding_window - 1 keys before it.
        s_aux: [Hq], attention sinks. position_bias: added to the scores, [B or 1, Hq or 1, Sq, Sk].

    Returns:
        out [B, Sq, Hq, Dv], and None in place of the probabilities, which are never held.
    """
    _refuse(kwargs)
    causal = bool(is_causal if is_causal is not None else getattr(module, "is_causal", True))
    packed = _packed(kwargs)
    options: Dict[str, Any] = {"scale": scaling, "dropout_p": dropout, "softcap": softcap or 0.0}
    if attention_mask is None or attention_mask.dim() == 2:
        options.update(causal=causal, window=_window(module, sliding_window, causal, key.shape[2]))
        if attention_mask is not None:
            options["mask"] = attention_mask[:, None, None, :].bool()
    else:  # the mask holds the whole pattern
        options["mask" if attention_mask.dtype == torch.bool else "bias"] = attention_mask
    if position_bias is not None:
        options["bias"] = position_bias if "bias" not in options else position_bias + options["bias"]
    if "bias" in options and options["bias"].dtype not in (query.dtype, torch.float32):
        options["bias"] = options["bias"].float()
    if s_aux is not None:
        options["sink"] = s_aux if s_aux.dtype == query.dtype else s_aux.float()
    # bshd is the layout of the result, which avoids a transposed copy.
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    if packed is None:
        return attention(q, k, v, layout="bshd", **options), None
    if "mask" not in options and "bias" not in options:
        return attention(q[0], k[0], v[0], layout="thd", **packed, **options)[None], None
    same = _same_sequence(packed, q.shape[1], k.shape[1])
    options["mask"] = same & options["mask"] if "mask" in options else same
    return attention(q, k, v, layout="bshd", **options), None


def _packed(kwargs: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """The options of layout "thd" if sequences are packed one after the other into one batch entry, otherwise None."""
    if kwargs.get("cu_seq_lens_q") is None:
        return None
    return {"cu_seqlens_q": kwargs["cu_seq_lens_q"].int(), "cu_seqlens_k": kwargs["cu_seq_lens_k"].int(),
            "max_seqlen_q": int(kwargs["max_length_q"]), "max_seqlen_k": int(kwargs["max_length_k"])}


def _same_sequence(packed: Dict[str, Any], len_q: int, len_k: int) -> Tensor:
    """bool [Sq, Sk]: whether query and key belong to the same packed sequence."""
    sequences = [torch.searchsorted(cu[1:].contiguous(), torch.arange(length, device=cu.device), right=True)
                 for cu, length in ((packed["cu_seqlens_q"], len_q), (packed["cu_seqlens_k"], len_k))]
    return sequences[0][:, None] == sequences[1]


def _refuse(kwargs: dict) -> None:
    """Refuses arguments that would change the result; ignoring them would be wrong."""
    if kwargs.get("output_attentions"):
        raise ValueError('output_attentions: cuflash never holds the probabilities; use attn_implementation="eager"')
    for name in ("head_mask", "layer_head_mask"):
        if kwargs.get(name) is not None:
            raise ValueError(f'{name}: is not supported; use attn_implementation="eager"')
    if kwargs.get("cache") is not None:
        raise ValueError('cache: paged caches of continuous batching are not supported; use attn_implementation="sdpa"')


def _window(module: torch.nn.Module, sliding_window: Any, causal: bool, len_k: int) -> Tuple[int, int]:
    if sliding_window is _NOT_GIVEN:
        # Such a model relies on its masks alone, which attention_mask has left out: see _pattern.
        configured = getattr(getattr(module, "config", None), "sliding_window", None)
        if causal and configured and configured < len_k:
            raise ValueError(f"sliding_window: {type(module).__name__} has {configured} in its configuration and does "
                             'not pass it to its attention function; use attn_implementation="sdpa" for this model')
        return -1, -1
    if not sliding_window or not causal:
        return -1, -1
    return sliding_window - 1, 0


def attention_mask(batch_size: int, kv_length: int, mask_function: Callable, attention_mask: Optional[Tensor] = None,
                   **kwargs: Any) -> Optional[Tensor]:
    """The mask that models of transformers pass to attention_forward; see there.

    kwargs has the positions of queries and keys (q_length, q_offset, kv_offset; cache_position before version 5).
    transformers' function for PyTorch's attention takes the same arguments and builds the masks of all other patterns.
    """
    pattern = _pattern(mask_function)
    may_skip_causal = kwargs.pop("allow_is_causal_skip", True)
    may_skip_all = kwargs.pop("allow_is_bidirectional_skip", False)
    is_known = (pattern == "all" and may_skip_all) or (
        pattern == "causal" and may_skip_causal and _ends_together(kv_length, **kwargs))
    if not is_known:
        return masking_utils.sdpa_mask(batch_size=batch_size, kv_length=kv_length, mask_function=mask_function,
                                       attention_mask=attention_mask, allow_is_causal_skip=False, **kwargs)
    if attention_mask is None:
        return None
    offset = kwargs.get("kv_offset", 0)
    padding = attention_mask[:, offset:offset + kv_length]
    if padding.shape[1] < kv_length:
        padding = torch.nn.functional.pad(padding, (0, kv_length - padding.shape[1]))
    if not torch.compiler.is_compiling() and bool(padding.all()):
        return None
    return padding


def _pattern(mask_function: Callable) -> Optional[str]:
    """ "all" if a query sees every key; "causal" if the causal flag and the window of attention_forward describe what
    it sees; None for a pattern that is not recognized.

    Functions that transformers composes keep their parts in closures, which compilers do not expose."""
    if mask_function is getattr(masking_utils, "bidirectional_mask_function", None):
        return "all"
    if mask_function is masking_utils.causal_mask_function:
        return "causal"
    if torch.compiler.is_compiling() or not _is_made_by(mask_function, masking_utils.and_masks):
        return None
    parts = inspect.getclosurevars(mask_function).nonlocals.get("mask_functions", ())
    is_window = len(parts) == 2 and parts[1] is masking_utils.causal_mask_function and _is_made_by(
        parts[0], masking_utils.sliding_window_overlay)
    return "causal" if is_window else None


def _is_made_by(function: Callable, maker: Callable) -> bool:
    return (getattr(function, "__module__", None) == maker.__module__
            and getattr(function, "__qualname__", "").startswith(maker.__name__ + ".<locals>."))


def _ends_together(kv_length: int, q_length: Optional[int] = None, q_offset: Any = None, kv_offset: int = 0,
                   cache_position: Optional[Tensor] = None, **_: Any) -> bool:
    """Whether the last query is aligned with the last key, as the library assumes. A static cache ends later."""
    if cache_position is not None:
        if torch.compiler.is_compiling():
            return False
        q_length, q_offset = cache_position.shape[0], int(cache_position[0])
    return isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
