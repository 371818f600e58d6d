"""The norm of all gradients together, clipping by it, and statistics that explain a non-finite one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


def total_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return the 2-norm over all gradients as a scalar, in fp32 (fp64 for fp64 gradients)."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    # Sums of squares overflow or drown in 8 bits of mantissa, so half precision is widened first.
    wide = [g.float() if g.dtype in (torch.bfloat16, torch.float16) else g for g in gradients]
    if not wide:
        return torch.zeros(())
    return torch.nn.utils.get_total_norm(wide)


def clip_to(parameters: Iterable[nn.Parameter], norm: Tensor, largest: float) -> None:
    """Scale all gradients in place so that their total norm is at most ``largest``."""
    torch.nn.utils.clip_grads_with_norm_(list(parameters), largest, norm)


def layer_statistics(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return, for each module that owns parameters, RMS and non-finite counts of parameters and gradients.

    RMS is over the finite values alone, so that one NaN does not hide how large the others are.
    """
    table: dict[str, dict[str, Any]] = {}
    for name, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        if not own:
            continue
        param_rms, param_bad = _finite_rms(own)
        grad_rms, grad_bad = _finite_rms([p.grad for p in own if p.grad is not None])
        table[name or "model"] = {
            "param_rms": param_rms,
            "param_nonfinite": param_bad,
            "grad_rms": grad_rms,
            "grad_nonfinite": grad_bad,
        }
    return table


def _finite_rms(tensors: list[Any]) -> tuple[float | None, int]:
    squares, count, bad = 0.0, 0, 0
    for tensor in tensors:
        values = tensor.detach().double()
        finite = torch.isfinite(values)
        squares += float(values[finite].square().sum())
        count += int(finite.sum())
        bad += int(finite.numel() - finite.sum())
    return (math.sqrt(squares / count) if count else None), bad
