"""Linear maps of rows grouped by expert: one call for all experts, forward and backward, that torch can compile.

N rows sorted by group, C inputs, O outputs, E groups; group e is rows ends[e-1] … ends[e]-1.

The public grouped matmul takes bf16 (on CPU fp32 too) with strides of 16 bytes; whatever it does not take goes
through a loop over the groups. It is wrapped as a custom operator because its own shape function refuses fp32
under `torch.compile`, and because its weight gradient would come out transposed.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.library.custom_op("k3lab::grouped_linear", mutates_args=())
def grouped_linear(x_NC: Tensor, weight_EOC: Tensor, ends_E: Tensor) -> Tensor:
    """y[n] = weight[group of n] · x[n], [N,O]; ``ends`` int32, whose last entry must be N; one dtype throughout.

    Differentiable in x and weight; a group without rows gets exactly zero gradient.
    """
    return _rows(x_NC, weight_EOC.transpose(1, 2), ends_E)


@grouped_linear.register_fake
def _(x_NC: Tensor, weight_EOC: Tensor, ends_E: Tensor) -> Tensor:
    return x_NC.new_empty(x_NC.shape[0], weight_EOC.shape[1])


@torch.library.custom_op("k3lab::grouped_linear_backward", mutates_args=())
def grouped_linear_backward(dy_NO: Tensor, x_NC: Tensor, weight_EOC: Tensor, ends_E: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `grouped_linear`: dx [N,C] and dweight [E,O,C], both contiguous."""
    return _rows(dy_NO, weight_EOC, ends_E), _outer(dy_NO, x_NC, ends_E)


@grouped_linear_backward.register_fake
def _(dy_NO: Tensor, x_NC: Tensor, weight_EOC: Tensor, ends_E: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x_NC), x_NC.new_empty(weight_EOC.shape)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, dy_NO: Tensor) -> tuple[Tensor, Tensor, None]:
    dx_NC, dweight_EOC = grouped_linear_backward(dy_NO.contiguous(), *ctx.saved_tensors)
    return dx_NC, dweight_EOC, None


grouped_linear.register_autograd(_backward, setup_context=_save)


def _rows(x_NA: Tensor, matrices_EAB: Tensor, ends_E: Tensor) -> Tensor:
    """Each row times its group's matrix, [N,B]."""
    if _grouped(x_NA, matrices_EAB):
        return F.grouped_mm(x_NA, matrices_EAB, offs=ends_E).contiguous()  # odd widths come padded on GPUs
    groups = x_NA.split(_sizes(ends_E))
    return torch.cat([group @ matrix for group, matrix in zip(groups, matrices_EAB, strict=True)])


def _outer(y_NA: Tensor, x_NB: Tensor, ends_E: Tensor) -> Tensor:
    """Each group's yᵀx, [E,A,B]: zero for a group without rows."""
    if _grouped(y_NA, x_NB):
        return F.grouped_mm(y_NA.T, x_NB, offs=ends_E).contiguous()
    sizes = _sizes(ends_E)
    return torch.stack([y.T @ x for y, x in zip(y_NA.split(sizes), x_NB.split(sizes), strict=True)])


def _grouped(*operands: Tensor) -> bool:
    dtypes = (torch.bfloat16,) if operands[0].is_cuda else (torch.bfloat16, torch.float32)
    return all(t.dtype in dtypes and t.numel() > 0 and _aligned(t) for t in operands)


def _aligned(t: Tensor) -> bool:
    return t.stride().count(1) == 1 and all(s == 1 or s * t.itemsize % 16 == 0 for s in t.stride())


def _sizes(ends_E: Tensor) -> list[int]:
    ends = ends_E.tolist()
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
