"""A measured problem: sizes and options of an attention call, and the operations and bytes that it needs."""

from __future__ import annotations

from typing import NamedTuple

ELEMENT_BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "e4m3": 1}
LSE_BYTES = 4


class Problem(NamedTuple):
    """A measured problem; its fields have the names and order of the results file."""

    device: str
    direction: str
    dtype: str
    batch: int
    heads_q: int
    heads_k: int
    len_q: int
    len_k: int
    head_dim: int
    head_dim_v: int
    causal: bool
    page_size: int

    @property
    def pairs(self) -> float:
        """Visible pairs of a query and a key for one head. The last query is aligned with the last key."""
        if not self.causal:
            return float(self.len_q) * self.len_k
        rows = min(self.len_q, self.len_k)
        return float(rows) * self.len_k - rows * (rows - 1) / 2

    @property
    def flops(self) -> float:
        """Useful operations, a multiply and an add being two."""
        dims = self.head_dim + self.head_dim_v
        if self.direction == "backward":
            dims = 3 * self.head_dim + 2 * self.head_dim_v
        return 2.0 * self.batch * self.heads_q * self.pairs * dims

    @property
    def minimal_bytes(self) -> float:
        """Bytes to read every input and write every result once; backward has a gradient for each of Q, K, V and O."""
        rows_q, rows_k = float(self.heads_q) * self.len_q, float(self.heads_k) * self.len_k
        once = self.batch * (rows_q + rows_k) * (self.head_dim + self.head_dim_v) * ELEMENT_BYTES[self.dtype]
        return 2 * once + self.batch * rows_q * LSE_BYTES if self.direction == "backward" else once

    @property
    def intensity(self) -> float:
        return self.flops / self.minimal_bytes
