"""The matrix of probabilities with the signs of dropout, which the library itself never holds.

Values that are columns of the identity make out a block of that matrix: exact, and as slow as Sk / Dv calls.
"""

from __future__ import annotations

from typing import Any, Dict, Tuple

import torch
from torch import Tensor

from .arguments import Inputs, OptionalTensor, unpack
from .seeds import Seed


def signed_probabilities(q: Tensor, k: OptionalTensor, v: OptionalTensor, dropout_p: float, dropout_seed: Seed,
                         options: Dict[str, Any]) -> Tensor:
    """[B, Hq, Sq, Sk] or packed [B, Hq, max_seqlen_q, max_seqlen_k]: p of each pair, -p where it was dropped.

    q, k, v and options (layout bshd or thd) are those of attention()."""
    from . import attention

    packed = options["layout"] == "thd"
    with torch.no_grad():
        q, k, v = unpack(Inputs(q, k, v))
        size = v.shape[-1]
        if packed:
            _, position = _places(options["cu_seqlens_k"], k.shape[0])
            length = int(options["max_seqlen_k"])
        else:
            length = k.shape[1]
            position = torch.arange(length, device=q.device)
        blocks = []
        for start in range(0, length, size):
            columns = (position[:, None] == torch.arange(start, start + size, device=q.device)).to(v.dtype)
            values = columns[:, None].expand(*v.shape[-3:]) if packed else columns[None, :, None].expand_as(v)
            p = attention(q, k, values, **options)
            kept = attention(q, k, values, dropout_p=dropout_p, dropout_seed=dropout_seed, **options)
            blocks.append(torch.where(kept > 0, p, -p))
        matrix = torch.cat(blocks, -1)[..., :length] if blocks else q.new_empty((*q.shape[:-1], 0))
        return _unpacked(matrix, options) if packed else matrix.transpose(1, 2).contiguous()


def _places(cu_seqlens: Tensor, total: int) -> Tuple[Tensor, Tensor]:
    """For each row: the sequence that it is in (B where it is in none), and its place there."""
    row = torch.arange(total, device=cu_seqlens.device)
    sequence = torch.searchsorted(cu_seqlens[1:].contiguous(), row, right=True)
    return sequence, row - cu_seqlens[sequence]


def _unpacked(matrix: Tensor, options: Dict[str, Any]) -> Tensor:
    """[total_q, Hq, max_seqlen_k] -> [B, Hq, max_seqlen_q, max_seqlen_k], zeros where there is no row."""
    cu_seqlens = options["cu_seqlens_q"]
    sequence, place = _places(cu_seqlens, matrix.shape[0])
    used = sequence < cu_seqlens.shape[0] - 1
    batch, heads, length = cu_seqlens.shape[0] - 1, matrix.shape[1], int(options["max_seqlen_q"])
    dense = matrix.new_zeros((batch, heads, length, matrix.shape[2]))
    dense[sequence[used], :, place[used]] = matrix[used]
    return dense
