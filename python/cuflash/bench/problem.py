"""The tensors of a problem, and the calls that compete on it."""

from __future__ import annotations

import warnings
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import cuflash

from .grid import Point

DTYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BACKENDS = {"torch-flash": SDPBackend.FLASH_ATTENTION, "torch-cudnn": SDPBackend.CUDNN_ATTENTION,
            "torch-efficient": SDPBackend.EFFICIENT_ATTENTION, "torch-math": SDPBackend.MATH}
CONTESTANTS = ("cuflash", *BACKENDS)
LARGEST_DIFFERENCE = {"f64": 1e-6, "f32": 1e-3, "f16": 0.02, "bf16": 0.03}  # of the norm

Call = Callable[[], Any]


class Refused(Exception):
    """Raised if a contestant does not compute a problem."""


class WrongResult(Exception):
    """Raised if two contestants disagree."""


class Problem:
    """Tensors are [B, S, H, D] in memory, as models produce them; pages of a cache are in random order."""

    def __init__(self, point: Point, threads: int):
        self.point, self.threads = point, threads
        p = point
        self.q, self.dout = self.rows(p.heads_q, p.len_q, p.head_dim), None
        self.pages = self.table = None
        if p.page_size:
            count = -(-p.len_k // p.page_size)
            self.pages = [self.rows(p.heads_k, p.page_size, dim, p.batch * count) for dim in (p.head_dim, p.head_dim_v)]
            order = torch.randperm(p.batch * count).to(torch.int32)
            self.table = order.reshape(p.batch, count).to(p.device)
        else:
            self.k, self.v = (self.rows(p.heads_k, p.len_k, dim) for dim in (p.head_dim, p.head_dim_v))
        if p.direction == "backward":
            self.dout = self.rows(p.heads_q, p.len_q, p.head_dim_v)
        self.lengths = torch.full((p.batch,), p.len_k, dtype=torch.int32, device=p.device)

    def rows(self, heads: int, length: int, dim: int, batch: int = 0) -> torch.Tensor:
        shape = (batch or self.point.batch, length, heads, dim)
        return torch.randn(shape, device=self.point.device).to(DTYPES[self.point.dtype]).transpose(1, 2)

    def call(self, contestant: str) -> Call:
        """The function to time. Raises Refused."""
        forward = self._cuflash() if contestant == "cuflash" else self._torch(contestant)
        if self.point.direction == "backward":
            leaves = [tensor.detach().requires_grad_() for tensor in (self.q, self.k, self.v)]
            out = forward(*leaves)
            return lambda: torch.autograd.grad(out, leaves, self.dout, retain_graph=True)

        def run() -> Any:
            with torch.no_grad():
                return forward(self.q, *((self.k, self.v) if self.pages is None else self.pages))

        return run

    def _cuflash(self) -> Callable[..., torch.Tensor]:
        p = self.point
        if p.direction != "decode":
            return lambda q, k, v: cuflash.attention(q, k, v, causal=p.causal, num_threads=self.threads)
        return lambda q, k, v: cuflash.attention_with_cache(
            q, k, v, cache_seqlens=self.lengths, block_table=self.table, causal=p.causal, num_threads=self.threads)

    def _torch(self, contestant: str) -> Callable[..., torch.Tensor]:
        p = self.point
        if p.page_size:
            raise Refused("it does not read pages")
        # A single query sees every key. PyTorch would align the first of several with the first key.
        causal = p.causal and p.len_q > 1
        if causal and p.len_q != p.len_k:
            raise Refused("its causal mask begins at the first key, cuflash's ends at the last")

        def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            with sdpa_kernel(BACKENDS[contestant]):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=causal, **({"enable_gqa": True} if p.heads_q != p.heads_k else {}))

        return forward

    def output_bytes(self) -> int:
        p = self.point
        if p.direction == "backward":
            return sum(tensor.numel() * tensor.element_size() for tensor in (self.q, self.k, self.v))
        return p.batch * p.heads_q * p.len_q * p.head_dim_v * self.q.element_size()


def _difference(ours: Any, theirs: Any) -> float:
    pairs = zip(ours, theirs) if isinstance(ours, tuple) else [(ours, theirs)]
    return max(((a - b).float().norm() / b.float().norm()).item() for a, b in pairs)


def contestants_of(problem: Problem, names: List[str]) -> Tuple[Dict[str, Call], Dict[str, str]]:
    """The contestants that compute the problem and agree on its result, and why the others do not compute it."""
    calls: Dict[str, Call] = {}
    refused: Dict[str, str] = {}
    first = None
    for name in names:
        try:
            with warnings.catch_warnings():  # PyTorch warns at length why a backend refuses
                warnings.simplefilter("ignore")
                call = problem.call(name)
                result = call()
                if problem.point.device == "cuda":
                    torch.cuda.synchronize()
        except (Refused, RuntimeError, ValueError, MemoryError) as error:  # a refusal, or too little memory
            refused[name] = (str(error).splitlines() or ["no reason given"])[0][:160]
            continue
        calls[name] = call
        if first is None:
            first = result
        elif not (difference := _difference(result, first)) < LARGEST_DIFFERENCE[problem.point.dtype]:
            raise WrongResult(f"{problem.point}: {name} and {next(iter(calls))} differ by {difference:.4f} of the norm")
    return calls, refused
