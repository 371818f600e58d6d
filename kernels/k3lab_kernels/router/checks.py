"""What the router functions accept: one ValueError or TypeError per mistake, naming the argument."""

from __future__ import annotations

import torch
from torch import Tensor


def check_tensor(name: str, x: object, dims: str, ndim: int, dtypes: tuple[torch.dtype, ...]) -> Tensor:
    """`x` as a tensor of `ndim` dimensions and one of `dtypes`."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: must be a tensor of shape {dims}, got {type(x).__name__}")
    if x.dim() != ndim:
        raise ValueError(f"{name}: must have shape {dims}, got {list(x.shape)}")
    if x.dtype not in dtypes:
        allowed = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
        raise ValueError(f"{name}: dtype must be {allowed}, got {str(x.dtype).removeprefix('torch.')}")
    return x


def check_shape(name: str, x: Tensor, shape: tuple[int, ...], dims: str, device: torch.device) -> None:
    """`x` has this shape and lives on this device."""
    if tuple(x.shape) != shape:
        raise ValueError(f"{name}: must have shape {dims} = {list(shape)}, got {list(x.shape)}")
    if x.device != device:
        raise ValueError(f"{name}: must be on {device}, got {x.device}")


def check_k(k: object, experts: int) -> int:
    """k is a whole number from 1 to experts − 1: the cutoff is the (k+1)-th largest score."""
    if not isinstance(k, int) or isinstance(k, bool):
        raise TypeError(f"k: must be an int, got {type(k).__name__}")
    if not 1 <= k < experts:
        raise ValueError(f"k={k}: must be from 1 to {experts - 1}, one less than the number of experts")
    return k


def check_no_nan(name: str, x: Tensor) -> None:
    """No NaN; looked at on a CPU only, since elsewhere it would stall the device, and not while compiling."""
    if x.device.type == "cpu" and not torch.compiler.is_compiling() and bool(x.detach().isnan().any()):
        raise ValueError(f"{name}: has NaN values")
