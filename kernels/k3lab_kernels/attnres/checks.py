"""What the attention-residual functions accept: one ValueError or TypeError per mistake, naming the argument."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def compute_dtype(x: Tensor) -> torch.dtype:
    """fp64 for fp64 sources, else fp32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def check_sources(name: str, sources: object) -> tuple[Tensor, ...]:
    """Sources [..., D] of one shape, dtype and device, from a sequence or a stacked [L, ..., D] tensor."""
    if isinstance(sources, Tensor):
        if sources.dim() < 2:
            raise ValueError(f"{name}: a stacked tensor must have shape [L, ..., D], got {list(sources.shape)}")
        sources = sources.unbind(0)
    if not isinstance(sources, Sequence):
        raise TypeError(f"{name}: must be a sequence of tensors or a stacked tensor, got {type(sources).__name__}")
    if len(sources) == 0:
        raise ValueError(f"{name}: must hold at least one source, got none")
    first = sources[0]
    for i, x in enumerate(sources):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: source {i} must be a tensor, got {type(x).__name__}")
        if x.dtype not in FLOATS:
            raise ValueError(f"{name}: source {i} must be floating point, got {str(x.dtype).removeprefix('torch.')}")
        if x.dim() < 1 or x.shape[-1] < 1:
            raise ValueError(f"{name}: source {i} must have shape [..., D], got {list(x.shape)}")
        if x.shape != first.shape or x.dtype != first.dtype or x.device != first.device:
            raise ValueError(
                f"{name}: all sources must be alike; source 0 is {list(first.shape)} {first.dtype} {first.device}, "
                f"source {i} is {list(x.shape)} {x.dtype} {x.device}"
            )
    return tuple(sources)


def check_vector(name: str, x: object, shape: tuple[int, ...], dims: str, device: torch.device) -> None:
    """A float parameter of this shape."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: must be a tensor of shape {dims}, got {type(x).__name__}")
    if x.dtype not in FLOATS:
        raise ValueError(f"{name}: must be floating point, got {str(x.dtype).removeprefix('torch.')}")
    if tuple(x.shape) != shape:
        raise ValueError(f"{name}: must have shape {dims} = {list(shape)}, got {list(x.shape)}")
    if x.device != device:
        raise ValueError(f"{name}: must be on {device} like the sources, got {x.device}")


def check_number(name: str, x: object, *, positive: bool) -> float:
    """A finite number, not negative where `positive` says so."""
    if isinstance(x, bool) or not isinstance(x, int | float):
        raise TypeError(f"{name}: must be a number, got {type(x).__name__}")
    if not math.isfinite(x) or (positive and x < 0):
        raise ValueError(f"{name}={x}: must be finite" + (" and not negative" if positive else ""))
    return float(x)
