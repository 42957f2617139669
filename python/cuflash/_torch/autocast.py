"""Automatic mixed precision: attention runs in the type of the autocast region, as PyTorch's own does."""

from __future__ import annotations

from typing import Tuple

import torch

from .arguments import NO_EXTRAS, Extras, Inputs


def cast(inputs: Inputs, extras: Extras, device: str) -> Tuple[Inputs, Extras]:
    """q, k and v in the type of the region. A bias or sink in f32 stays f32, which the library takes.

    f64 stays f64, as everywhere under autocast."""
    if inputs[0].dtype == torch.float64:
        return inputs, extras
    dtype = torch.get_autocast_dtype(device)
    inputs = tuple(tensor.to(dtype) if tensor is not None else None for tensor in inputs)
    if extras is NO_EXTRAS:
        return inputs, extras
    bias, sink = (tensor if tensor is None or tensor.dtype == torch.float32 else tensor.to(dtype)
                  for tensor in (extras.bias, extras.sink))
    return inputs, extras._replace(bias=bias, sink=sink)
