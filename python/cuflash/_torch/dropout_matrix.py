"""The matrix of probabilities, negative where dropout dropped them. The library itself never holds it.

With columns of the identity as values, out is a block of that matrix: exact, at the cost of 2 Sk / Dv calls.
"""

from __future__ import annotations

from typing import Callable, Tuple

import torch
from torch import Tensor

from .arguments import Extras, Inputs, unpack


def signed_probabilities(inputs: Inputs, extras: Extras, layout: str, max_seqlen_q: int, max_seqlen_k: int,
                         dropout_p: float, attend: Callable[[Inputs, float], Tuple[Tensor, Tensor]]) -> Tensor:
    """[B, Hq, Sq, Sk] or packed [B, Hq, max_seqlen_q, max_seqlen_k]: p of each pair, -p if it was dropped.

    attend(inputs, dropout_p) is the caller's own call, with its seed and options; the layout is bshd or thd."""
    packed = layout == "thd"
    with torch.no_grad():
        q, k, v = unpack(inputs)
        length = max_seqlen_k if packed else k.shape[1]
        position = _positions(extras.cu_seqlens_k, k.shape[0])[1] if packed else torch.arange(length, device=q.device)
        size = v.shape[-1]
        blocks = [q.new_empty((*q.shape[:-1], 0))]
        for start in range(0, length, size):
            columns = (position[:, None] == torch.arange(start, start + size, device=q.device)).to(v.dtype)
            values = columns[:, None].expand_as(v)  # shared by all heads and batch entries
            p, _ = attend((q, k, values), 0.0)
            kept, _ = attend((q, k, values), dropout_p)
            blocks.append(torch.where(kept > 0, p, -p))
        matrix = torch.cat(blocks, -1)[..., :length]
        return _unpacked(matrix, extras.cu_seqlens_q, max_seqlen_q) if packed else matrix.transpose(1, 2).contiguous()


def _positions(cu_seqlens: Tensor, total: int) -> Tuple[Tensor, Tensor]:
    """The sequence of each row (B if it belongs to none), and the row's position in it."""
    row = torch.arange(total, device=cu_seqlens.device)
    sequence = torch.searchsorted(cu_seqlens[1:].contiguous(), row, right=True)
    return sequence, row - cu_seqlens[sequence]


def _unpacked(matrix: Tensor, cu_seqlens: Tensor, length: int) -> Tensor:
    """[total_q, Hq, max_seqlen_k] -> [B, Hq, max_seqlen_q, max_seqlen_k], zeros where a sequence has no row."""
    batch = cu_seqlens.shape[0] - 1
    sequence, position = _positions(cu_seqlens, matrix.shape[0])
    used = sequence < batch
    dense = matrix.new_zeros((batch, matrix.shape[1], length, matrix.shape[2]))
    dense[sequence[used], :, position[used]] = matrix[used]
    return dense
