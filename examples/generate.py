"""Generates tokens with a paged KV cache and without a cache, and checks that they are the same.

    python examples/generate.py
    python examples/generate.py --device cuda --tokens 200 --prompts 40 900 333

The model is a small transformer with random weights: grouped heads, rotary embedding, causal attention. Prompts of
different lengths go through it in one packed call. Then every sequence grows by one token per step, and one of them is
forked after its prompt: both continuations read the same pages. One call per layer appends to the pages, applies the
rotary embedding to queries and keys, and attends.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cuflash

VOCABULARY = 500
LAYERS = 3
HEADS, HEADS_K, DIM = 8, 2, 32
WIDTH = HEADS * DIM
PAGE_SIZE = 16


class PagedCache:
    """Pages of K and V for every layer, and the pool that assigns them to sequences."""

    def __init__(self, pages: int, sequences: int, device: str) -> None:
        self.pool = cuflash.PagePool(pages, PAGE_SIZE, max_sequences=sequences)
        self.memory = torch.zeros(LAYERS, 2, pages, PAGE_SIZE, HEADS_K, DIM, device=device)

    def grow(self, sequences: Sequence, counts: Sequence[int]) -> Tuple[Tensor, Tensor]:
        """Reserves room for new tokens. Returns the old lengths and the block table with the new pages."""
        lengths = self.pool.lengths(sequences)
        for sequence, count in zip(sequences, counts):
            room = self.pool.append(sequence, count)
            if not room:
                raise RuntimeError(f"{room.fit}: {room.missing_pages} pages are missing")
            if room.copy:  # a shared last page is copied before a sequence writes into it
                source, destination, tokens = room.copy
                self.memory[:, :, destination, :tokens] = self.memory[:, :, source, :tokens]
        table = self.pool.block_table(sequences)
        return tuple(torch.from_numpy(x).to(self.memory.device) for x in (lengths, table))


class Batch:
    """The new tokens of several sequences, packed, and where they go in the cache."""

    def __init__(self, cache: PagedCache, sequences: Sequence, tokens: Sequence[List[int]]) -> None:
        device, counts = cache.memory.device, [len(x) for x in tokens]
        self.memory = cache.memory
        self.lengths, self.table = cache.grow(sequences, counts)
        self.tokens = torch.tensor([token for x in tokens for token in x], device=device)
        self.cu_seqlens = F.pad(torch.tensor(counts).cumsum(0), (1, 0)).to(device, torch.int32)
        self.longest = max(counts)
        self.last = self.cu_seqlens[1:].long() - 1


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * HEADS_K) * DIM)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def qkv_of(self, x: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """[tokens, heads, DIM] each."""
        return self.qkv(self.norm1(x)).unflatten(-1, (-1, DIM)).split([HEADS, HEADS_K, HEADS_K], -2)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.project(attended.flatten(-2))
        return x + self.feed_forward(self.norm2(x))


class Model(nn.Module):
    def __init__(self, longest: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
        angle = torch.arange(longest)[:, None] * 10_000.0 ** -(torch.arange(DIM // 2) / (DIM // 2))
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def with_cache(self, batch: Batch) -> Tensor:
        """The logits after the last new token of each sequence."""
        x = self.embedding(batch.tokens)
        for layer, (k_cache, v_cache) in zip(self.layers, batch.memory):
            q, k, v = layer.qkv_of(x)
            attended = cuflash.attention_with_cache(
                q, k_cache, v_cache, k, v, layout="bshd", causal=True, block_table=batch.table,
                cache_seqlens=batch.lengths, cu_seqlens_q=batch.cu_seqlens, cu_seqlens_new=batch.cu_seqlens,
                max_seqlen_q=batch.longest, max_seqlen_new=batch.longest, rotary_cos=self.cos, rotary_sin=self.sin)
            x = layer.finish(x, attended)
        return self.head(self.norm(x[batch.last]))

    def without_cache(self, tokens: Tensor) -> Tensor:
        """The logits after the last of these tokens, computed from all of them."""
        x = self.embedding(tokens)
        for layer in self.layers:
            q, k, v = layer.qkv_of(x)
            q, k = self.rotated(q), self.rotated(k)
            x = layer.finish(x, cuflash.flash_attn_func(q[None], k[None], v[None], causal=True)[0])
        return self.head(self.norm(x[-1]))

    def rotated(self, x: Tensor) -> Tensor:
        """Applies the rotary embedding, as the call over the cache does internally."""
        cos, sin = self.cos[:len(x), None], self.sin[:len(x), None]
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def best(logits: Tensor, rank: int = 0) -> List[int]:
    """The most likely token of each row, or the one of this rank."""
    return logits.topk(rank + 1).indices[..., rank].tolist()


def generate_with_cache(model: Model, prompts: List[List[int]], count: int, device: str) -> List[List[int]]:
    longest = [len(prompt) + count for prompt in (*prompts, prompts[0])]
    cache = PagedCache(sum(-(-tokens // PAGE_SIZE) for tokens in longest), len(longest), device)
    sequences = [cache.pool.start() for _ in prompts]
    logits = model.with_cache(Batch(cache, sequences, prompts))
    sequences.append(cache.pool.fork(sequences[0]))
    written = [[token] for token in (*best(logits), best(logits[0], 1))]  # the fork continues differently
    for _ in range(count - 1):
        logits = model.with_cache(Batch(cache, sequences, [tokens[-1:] for tokens in written]))
        for tokens, token in zip(written, best(logits)):
            tokens.append(token)
    stats = cache.pool.statistics()
    print(f"{stats.sequences} sequences with {stats.tokens} tokens on {stats.used_pages} pages, {stats.shared_pages} "
          "of them shared")
    return written


def generate_without_cache(model: Model, prompts: List[List[int]], count: int, device: str) -> List[List[int]]:
    written = []
    for number, prompt in enumerate((*prompts, prompts[0])):
        tokens = torch.tensor(prompt, device=device)
        for step in range(count):
            rank = 1 if step == 0 and number == len(prompts) else 0
            tokens = torch.cat([tokens, torch.tensor([best(model.without_cache(tokens), rank)], device=device)])
        written.append(tokens[len(prompt):].tolist())
    return written


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--tokens", type=int, default=40, help="to generate for each sequence")
    parser.add_argument("--prompts", type=int, nargs="+", default=[100, 20, 300], help="lengths of the prompts")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)

    torch.manual_seed(options.seed)
    prompts = [torch.randint(VOCABULARY, (length,)).tolist() for length in options.prompts]
    model = Model(max(options.prompts) + options.tokens).to(options.device).eval()
    written = {}
    for name, generate in (("with a cache", generate_with_cache), ("without a cache", generate_without_cache)):
        began = time.perf_counter()
        with torch.inference_mode():
            written[name] = generate(model, prompts, options.tokens, options.device)
        seconds = time.perf_counter() - began
        print(f"{name}: {sum(map(len, written[name])) / seconds:.0f} tokens a second")
        for tokens in written[name]:
            print("   ", *tokens)
    if written["with a cache"] != written["without a cache"]:
        print("the tokens differ", file=sys.stderr)
        return 1
    print("the tokens are the same")
    return 0


if __name__ == "__main__":
    sys.exit(main())
