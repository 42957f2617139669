"""What automatic mixed precision does to attention: the type of the region, as for PyTorch's own."""

from __future__ import annotations

from typing import Tuple

import torch

from .arguments import Extras, Inputs


def is_on(device: str) -> bool:
    return torch.is_autocast_enabled(device)


def cast(inputs: Inputs, extras: Extras, device: str) -> Tuple[Inputs, Extras]:
    """q, k and v in the type of the region; bias and sink stay f32 where they are, because the library takes that.

    f64 stays as it is, as everywhere under autocast."""
    if inputs.q.dtype == torch.float64:
        return inputs, extras
    dtype = torch.get_autocast_dtype(device)
    inputs = Inputs(*(tensor.to(dtype) if tensor is not None else None for tensor in inputs))
    bias, sink = (tensor if tensor is None or tensor.dtype == torch.float32 else tensor.to(dtype)
                  for tensor in (extras.bias, extras.sink))
    return inputs, extras._replace(bias=bias, sink=sink)
