"""Trains a small GPT twice, once with cuflash and once with PyTorch's attention, from the same seed, and compares.

    python examples/train_gpt.py --check                     300 steps on the CPU: a minute or two
    python examples/train_gpt.py --device cuda --dtype bfloat16 --steps 1000
    python examples/train_gpt.py --plot docs/images/train_gpt.svg

The text comes from a small grammar, so that nothing is downloaded. Words are drawn at random; their spelling, their
order and the agreement of verbs with their subjects can be learned.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import torch
from svg_plot import Curve, Panel, write_svg
from torch import Tensor, nn
from torch.nn import functional as F

import cuflash

CONTEXT = 64
WIDTH = 64
HEADS = 4
LAYERS = 3
BATCH = 12

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def cuflash_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[B, S, H, D], the layout in which a linear layer leaves its result."""
    return cuflash.flash_attn_func(q, k, v, causal=True)


def torch_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same with PyTorch, which expects [B, H, S, D]."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


ATTENTIONS: Dict[str, Attention] = {"torch": torch_attention, "cuflash": cuflash_attention}


def grammar_text(sentences: int, seed: int) -> str:
    """Sentences of nouns with adjectives, verbs that agree with them in number, and sometimes a clause between them."""
    choose = random.Random(seed).choice

    def noun_phrase(depth: int) -> Tuple[str, bool]:
        """The phrase, and whether it is plural: the verb, which may be far away, must agree with it."""
        plural = choose([False, True])
        noun = choose(["fox", "crow", "river", "stone", "child", "engine", "letter"])
        if plural:
            noun = {"fox": "foxes", "child": "children"}.get(noun, noun + "s")
        words = [choose(["the", "some"] if plural else ["the", "a"]), choose(["red", "old", "quiet", "tall", ""]), noun]
        if depth and choose([True, False, False]):
            words.append("that " + predicate(plural, depth - 1))
        return " ".join(word for word in words if word), plural

    def predicate(plural: bool, depth: int) -> str:
        verb = choose(["follow", "see", "move", "remember", "hear"])
        return f"{verb if plural else verb + 's'} {noun_phrase(depth)[0]}"

    def sentence() -> str:
        subject, plural = noun_phrase(2)
        return f"{subject} {predicate(plural, 1)}. "
    return "".join(sentence() for _ in range(sentences))


class Block(nn.Module):
    """Attention and a feed-forward layer, each on a normalised input and added to it."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, WIDTH] -> the same."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS)).unbind(2)
        x = x + self.project(self.attention(q, k, v).flatten(2))
        return x + self.feed_forward(self.norm2(x))


class GPT(nn.Module):
    """Characters in, the logits of the next character out."""

    def __init__(self, vocabulary: int, attention: Attention) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block(attention) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, S] -> [B, S, vocabulary]."""
        x = self.tokens(tokens) + self.places.weight[:tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def train(name: str, characters: str, options: argparse.Namespace) -> List[float]:
    """The loss of every step. All randomness comes from the seed, so runs differ only in their attention."""
    number = {character: n for n, character in enumerate(sorted(set(characters)))}
    text = torch.tensor([number[character] for character in characters])
    torch.manual_seed(options.seed)
    model = GPT(len(number), ATTENTIONS[name]).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
    draw = torch.Generator().manual_seed(options.seed)
    dtype = getattr(torch, options.dtype)
    losses, began = [], time.perf_counter()
    for step in range(options.steps):
        for group in optimizer.param_groups:  # a short warm-up, then half a cosine
            group["lr"] = 2e-3 * min(1, (step + 1) / 20) * (0.55 + 0.45 * math.cos(math.pi * step / options.steps))
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=draw)
        rows = torch.stack([text[start:start + CONTEXT + 1] for start in starts.tolist()]).to(options.device)
        with torch.autocast(options.device, dtype, enabled=dtype != torch.float32):
            logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % max(1, options.steps // 10) == 0:
            pace = (time.perf_counter() - began) / (step + 1)
            print(f"{name:8} step {step + 1:5} of {options.steps}   loss {losses[-1]:.4f}   {1e3 * pace:.0f} ms a step",
                  flush=True)
    return losses


def mean_of_last(losses: List[float]) -> float:
    last = losses[-max(1, len(losses) // 10):]
    return sum(last) / len(last)


def disagreement(losses: Dict[str, List[float]], dtype: str) -> str:
    """Why these curves disagree; "" if they agree.

    Rounding differs between the two, and training amplifies differences: the first steps must agree to rounding, the
    whole curve to the eye, and the end on average. A wrong attention fails the first of these at once."""
    differences = [abs(a - b) for a, b in zip(*losses.values())]
    begin, whole = max(differences[:10]), max(differences)
    end = abs(mean_of_last(losses["torch"]) - mean_of_last(losses["cuflash"]))
    rounding = 5e-5 if dtype == "float32" else 0.02
    for what, value, limit in (("the first steps", begin, rounding), ("some step", whole, 0.1), ("the end", end, 0.02)):
        if not value <= limit:
            return f"{what} differ by {value:.2g}, allowed is {limit}"
    return ""


def plot(path: str, losses: Dict[str, List[float]], options: argparse.Namespace) -> None:
    steps = list(range(1, options.steps + 1))
    styles = {"torch": ("#e0a030", 5.0), "cuflash": ("#1f4e9c", 1.5)}
    curves = [Curve(f"{name}: {mean_of_last(losses[name]):.4f} at the end", steps, losses[name], *styles[name])
              for name in ("torch", "cuflash")]
    difference = [max(abs(a - b), 1e-9) for a, b in zip(losses["torch"], losses["cuflash"])]
    differences = Curve("|torch - cuflash|, 0 drawn as 1e-9", steps, difference, "#a03030", 1.2)
    panels = [Panel("loss", curves, 260), Panel("difference", [differences], 120, logarithmic=True)]
    write_svg(path, f"A GPT trained twice from one seed ({options.device}, {options.dtype})", panels, x_label="step")
    print(f"wrote {path}")


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"), help="of autocast")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="fail where the curves do not agree")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw both curves")
    options = parser.parse_args(arguments)

    characters = grammar_text(2000, options.seed)
    print(f'{len(characters)} characters, for example: "{characters[:90]}..."')
    losses = {name: train(name, characters, options) for name in ATTENTIONS}
    for name, values in losses.items():
        print(f"{name:8} first loss {values[0]:.4f}   last tenth {mean_of_last(values):.4f}")
    print(f"largest difference at a step {max(abs(a - b) for a, b in zip(*losses.values())):.2g}")
    wrong = disagreement(losses, options.dtype)
    if options.plot:
        plot(options.plot, losses, options)
    if wrong:
        print(f"the curves do not agree: {wrong}", file=sys.stderr)
    else:
        print("the curves agree")
    learned = mean_of_last(losses["cuflash"]) < losses["cuflash"][0]
    return 1 if options.check and (wrong or not learned) else 0


if __name__ == "__main__":
    sys.exit(main())
