"""Attention straight from its definition, in plain PyTorch operations of any type; in float64 it is the reference.

It shares no code with the library: masks, dropout and the row sums are written again.
"""

import math

import numpy as np
import torch


def attention(q, k, v, *, dtype, bias=None, mask=None, sink=None, alibi_slopes=None, seqlens_q=None, seqlens_k=None,
              scale=None, causal=False, top_left=False, window=(-1, -1), softcap=0.0, dropout_p=0.0,
              dropout_seed=(0, 0)):
    """q [B, Sq, Hq, D], k [B, Sk, Hk, D], v [B, Sk, Hk, Dv] -> out [B, Sq, Hq, Dv], lse [B, Hq, Sq] in `dtype`."""
    group = q.shape[2] // max(k.shape[2], 1)
    q, k, v = (tensor.to(dtype).transpose(1, 2) for tensor in (q, k, v))
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    (batch, heads, len_q, _), len_k, device = q.shape, k.shape[2], q.device
    seqlens_q = _lengths(seqlens_q, batch, len_q, device)
    seqlens_k = _lengths(seqlens_k, batch, len_k, device)
    i = torch.arange(len_q, device=device)[:, None]
    j = torch.arange(len_k, device=device)
    diagonal = i if top_left else i + seqlens_k - seqlens_q

    scores = (scale if scale is not None else 1 / math.sqrt(q.shape[3])) * (q @ k.transpose(2, 3))
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.to(dtype).reshape(-1, heads, 1, 1) * (diagonal - j).abs()
    if bias is not None:
        scores = scores + bias.to(dtype)
    visible = ((j < seqlens_k) & (i < seqlens_q)).expand(batch, heads, len_q, len_k)
    if mask is not None:
        visible = visible & mask
    left, right = window[0], 0 if causal else window[1]
    if right >= 0:
        visible = visible & (j <= diagonal + right)
    if left >= 0:
        visible = visible & (j >= diagonal - left)

    # The sink is one more column, without a value; a missing sink is a column of -inf.
    sink = scores.new_full((heads,), -math.inf) if sink is None else sink.to(dtype)
    sink = torch.where(i < seqlens_q, sink[:, None, None], -math.inf).expand(batch, heads, len_q, 1)
    columns = torch.cat([torch.where(visible, scores, -math.inf), sink], 3)
    empty = (columns == -math.inf).all(3, keepdim=True)
    lse = torch.logsumexp(torch.where(empty, 0.0, columns), 3, keepdim=True)
    p = torch.where(visible, torch.exp(torch.where(visible, scores, lse) - lse), 0.0)
    if dropout_p > 0:
        p = p * keeps(batch, heads, len_q, len_k, dropout_p, dropout_seed).to(device) / (1 - dropout_p)
    out = (p.to(v.dtype) @ v).transpose(1, 2)
    return out, torch.where(empty, -math.inf, lse).squeeze(3)


def packed_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, **options):
    """q [Tq, Hq, D], k [Tk, Hk, D], v [Tk, Hk, Dv] -> out [Tq, Hq, Dv], lse [Hq, Tq]."""
    seqlens_q, seqlens_k = cu_seqlens_q.diff().tolist(), cu_seqlens_k.diff().tolist()
    out, lse = attention(_pad(q, seqlens_q), _pad(k, seqlens_k), _pad(v, seqlens_k), seqlens_q=seqlens_q,
                         seqlens_k=seqlens_k, **options)
    rows = list(enumerate(seqlens_q))
    return (torch.cat([out[b, :n] for b, n in rows] or [out.flatten(0, 1)]),
            torch.cat([lse[b, :, :n] for b, n in rows] or [lse.sum(0)], 1))


def keeps(batch, heads, len_q, len_k, dropout_p, seed_and_offset):
    """bool [B, H, Sq, Sk]: 16 bits of Philox2x32-7 decide, keyed by the stream of the head, which Philox4x32-10
    derives from the seed."""
    seed, offset = seed_and_offset
    b, h, i, j = np.meshgrid(*(np.arange(n, dtype=np.uint64) for n in (batch, heads, len_q, len_k)), indexing="ij")
    stream = _philox(seed & 0xFFFFFFFF, seed >> 32, (offset & 0xFFFFFFFF, offset >> 32, b, h))
    counters = stream[1] + (i // 16) * 8 + i % 8, stream[2] + (j // 16) * 4 + j % 8 // 2
    row, column = ((i // 8) % 2).astype(np.int64), (j // 8) % 2 * 2 + j % 2
    high, low = (np.choose(row, _philox2(stream[0], *counters, rounds)) >> column * np.uint64(8) & np.uint64(255)
                 for rounds in (7, 5))
    return torch.from_numpy(_kept_windows(dropout_p)[(high << np.uint64(8) | low).astype(np.int64)])


def _kept_windows(p):
    """bool [65536]: all but the first, in the order of bf16 numbers with NaN last; for p above 0.502 the first."""
    magnitudes = np.arange(0x7f81)
    negative_first = np.concatenate([0x8000 + magnitudes[::-1], magnitudes])
    order = np.concatenate([negative_first, np.arange(0x7f81, 0x8000), np.arange(0x10000 - 1, 0xff80, -1)])
    dropped = int(p * 2**16 + 0.5)
    kept = np.zeros(2**16, dtype=bool)
    if dropped == 0x7f81 or dropped >= 0x8080:
        kept[order[:2**16 - dropped]] = True
    else:
        kept[order[dropped:]] = True
    return kept


def _philox2(key, c0, c1, rounds):
    low = np.uint64(0xFFFFFFFF)
    c0, c1 = c0 & low, c1 & low
    for _ in range(rounds):
        product = np.uint64(0xD256D193) * c0
        c0, c1 = (product >> np.uint64(32)) ^ c1 ^ key, product & low
        key = (key + np.uint64(0x9E3779B9)) & low
    return c0, c1


def _philox(key0, key1, counter):
    low = np.uint64(0xFFFFFFFF)
    key0, key1, c0, c1, c2, c3 = (np.asarray(word, dtype=np.uint64) for word in (key0, key1, *counter))
    for _ in range(10):
        product0, product1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = ((product1 >> np.uint64(32)) ^ c1 ^ key0, product1 & low,
                          (product0 >> np.uint64(32)) ^ c3 ^ key1, product0 & low)
        key0, key1 = (key0 + np.uint64(0x9E3779B9)) & low, (key1 + np.uint64(0xBB67AE85)) & low
    return [np.broadcast_to(word, np.broadcast(c0, c1, c2, c3).shape) for word in (c0, c1, c2, c3)]


def _lengths(lengths, batch, default, device):
    lengths = torch.full((batch,), default) if lengths is None else torch.as_tensor(lengths)
    return lengths.to(device).reshape(batch, 1, 1, 1)


def _pad(packed, lengths):
    """[T, H, D] -> [B, longest, H, D], zeros beyond a length."""
    longest, start, padded = max(lengths, default=0), 0, []
    for n in lengths:
        padded.append(torch.nn.functional.pad(packed[start:start + n], (0, 0, 0, 0, 0, longest - n)))
        start += n
    return torch.stack(padded) if padded else packed[None][:0, :0]
