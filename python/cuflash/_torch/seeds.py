"""Dropout seeds from PyTorch's generators, repeatable by manual_seed and by the RNG state that activation checkpointing
restores.

A dropout mask is a function of (seed, offset) alone: a call needs two numbers on the host and no random tensor.
"""

from __future__ import annotations

import threading
from typing import Tuple, Union

import torch
from torch import Tensor

from .._values import LARGEST_SEED, shown, whole

Seed = Union[int, Tuple[int, int], Tensor]
"""seed; (seed, offset); or the bits of both in an i64 tensor [2] in host memory, as traced programs carry them"""

_WORD = 1 << 64
_lock = threading.Lock()


def draw(device: torch.device) -> Tuple[int, int]:
    """(seed, offset) from the generator of this device. A GPU's keeps its state on the host: nothing waits."""
    if device.type != "cuda":
        return tuple(draw_traceable().tolist())
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("dropout_p > 0 while a CUDA graph is captured: every replay would drop the same scores. "
                           "Pass dropout_seed if that is intended")
    generator = torch.cuda.default_generators[device.index]
    with _lock:
        offset = generator.get_offset()
        generator.set_offset(offset + 4)  # PyTorch keeps offsets at multiples of 4
    return generator.initial_seed(), offset


def draw_traceable() -> Tensor:
    """Seed and offset as a random tensor, so that compilers draw new ones for each call."""
    return torch.randint(0, (1 << 63) - 1, (2,), dtype=torch.int64, device="cpu")


def with_offset(seed: Seed, offset: int) -> Seed:
    """The seed as it is if it has an offset, otherwise with this offset."""
    return seed if isinstance(seed, (tuple, list, Tensor)) else (seed, offset)


def as_numbers(seed: Seed) -> Tuple[int, int]:
    """(seed, offset), each in [0, 2**64)."""
    if isinstance(seed, Tensor):
        if seed.dtype != torch.int64 or seed.shape != (2,):
            raise ValueError(f"dropout_seed: is a tensor of {seed.dtype} and shape {list(seed.shape)}, must be one of "
                             "torch.int64 with the two numbers (seed, offset)")
        seed, offset = seed.tolist()
        return seed % _WORD, offset % _WORD
    if not isinstance(seed, (tuple, list)):
        seed = (seed, 0)
    if len(seed) != 2:
        raise ValueError(f"dropout_seed: got {shown(seed)}, must be a whole number or two (seed, offset)")
    return whole(seed[0], "dropout_seed", 0, LARGEST_SEED), whole(seed[1], "dropout_offset", 0, LARGEST_SEED)


def as_tensor(seed: Seed) -> Tensor:
    """i64 [2] in host memory."""
    if isinstance(seed, Tensor):
        return seed
    words = [word - _WORD if word >= _WORD // 2 else word for word in as_numbers(seed)]
    return torch.tensor(words, dtype=torch.int64, device="cpu")
