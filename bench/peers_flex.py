"""PyTorch's flex_attention, compiled, as a contestant of bench/world.py."""

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from peers_calls import Lacks, directed

# Once one of these limits is reached, flex_attention runs uncompiled from then on, at most with a warning.
LIMITS = ("recompile_limit", "cache_size_limit", "accumulated_recompile_limit", "accumulated_cache_size_limit")


class Flex:
    """Calls flex_attention with masks and score functions that are compiled into its kernel. Making block masks is not
    timed."""

    def __init__(self):
        for name in LIMITS:
            if hasattr(torch._dynamo.config, name):
                setattr(torch._dynamo.config, name, 1 << 20)
        torch._dynamo.config.automatic_dynamic_shapes = False  # one kernel for each size

    def forms(self, t):
        s = t.shape
        for name, asked in (("dropout", s.dropout), ("pages", s.page_size), ("f32 at full speed", s.dtype == "f32"),
                            ("deterministic backward", s.deterministic)):
            if asked:
                raise Lacks(f"flex_attention has no {name}")
        return {"compiled" if t.q.is_cuda else "eager": self.attention(t)}

    def attention(self, t):
        s = t.shape
        options = {"enable_gqa": s.heads_q != s.heads_k}
        mask = self.mask_of(t)
        if mask is not None:
            batch = s.batch if s.mask == "random" or s.padded else None
            options["block_mask"] = create_block_mask(mask, batch, None, s.len_q, s.len_k, device=t.device)

        def attend(q, k, v, *learned):
            bias = (learned[0] if s.bias == "learned" else t.bias) if s.bias else None
            score = self.score_of(t, bias)
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            if s.sinks:  # applied afterwards: the sink's weight in the sum scales a softmax without it
                out, lse = flex_attention(q, k, v, score_mod=score, return_lse=True, **options)
                out = (out * torch.sigmoid(lse - learned[-1].float()[:, None])[..., None]).to(q.dtype)
            else:
                out = flex_attention(q, k, v, score_mod=score, **options)
            return out.transpose(1, 2)
        return directed(t, torch.compile(attend, dynamic=False) if t.q.is_cuda else attend)

    @staticmethod
    def score_of(t, bias):
        cap, slopes = t.shape.softcap, t.slopes if t.shape.alibi else None
        if not cap and slopes is None and bias is None:
            return None
        table = bias[0] if bias is not None else None  # PyTorch 2.9's vmap cannot index by a number

        def score(x, b, h, i, j):
            if cap:
                x = cap * torch.tanh(x / cap)
            if slopes is not None:
                x = x - slopes[h] * (i - j).abs()
            return x + table[h, i, j] if table is not None else x
        return score

    @staticmethod
    def mask_of(t):
        s = t.shape
        if not (s.causal or s.mask or s.padded):
            return None
        table = t.mask[:, 0] if s.mask == "random" else None

        def visible(b, h, i, j):
            seen = j <= i if s.causal else j >= 0
            if s.window >= 0:
                seen = seen & (i - j <= s.window)
            if s.mask == "documents":
                seen = seen & (i // s.document == j // s.document)
            if s.mask == "random":
                seen = seen & table[b, i, j]
            if s.padded:
                seen = seen & (i < t.own_lengths[b]) & (j < t.own_lengths[b])
            return seen
        return visible
