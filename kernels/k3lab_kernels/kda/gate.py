"""What the KDA kernels do to their raw inputs: decay gate, L2-norm of q and k, sigmoid of β, grouped heads.

Plain differentiable PyTorch in fp32 (fp64 for fp64). Shapes: B batch, T time, H heads, HV value heads, K key dim.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from k3lab_kernels.kda.checks import accumulation_dtype

L2_EPS = 1e-6


class _Sigmoid(Function):
    """σ of exp and divide: on a CPU torch's own rounds the last elements of an array unlike the others, so that a
    token's value would depend on how many tokens come after it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.exp(-x).add_(1).reciprocal_()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_y: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return d_y * (y * (1 - y))


class _Softplus(Function):
    """log(1 + e^x), for the same reason."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0) + torch.exp(-x.abs()).log1p_()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_y: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return d_y * torch.exp(-x).add_(1).reciprocal_()


def sigmoid(x: Tensor) -> Tensor:
    """σ(x), each element by itself."""
    return _Sigmoid.apply(x)


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x), each element by itself."""
    return _Softplus.apply(x)


def kda_gate(
    z_BTHK: Tensor, A_log: Tensor | None, dt_bias: Tensor | None, lower_bound: float | None, dtype
) -> Tensor:
    """Log decay from raw logits: `lower_bound·σ(e^A·(z+bias))`, or `−e^A·softplus(z+bias)` without a bound.

    Sources: Kimi K3 report (arXiv 2607.24653), Eq. 5; Kimi Linear (arXiv 2510.26692).
    """
    heads, K = z_BTHK.shape[2:]
    z = z_BTHK.to(dtype)
    if dt_bias is not None:
        z = z + dt_bias.to(dtype).reshape(heads, K)
    speed = None if A_log is None else A_log.to(dtype).reshape(heads, 1).exp()
    if lower_bound is not None:
        return lower_bound * sigmoid(z if speed is None else speed * z)
    return -softplus(z) if speed is None else -speed * softplus(z)


def l2_normalise(x: Tensor, dtype) -> Tensor:
    """`x·rsqrt(Σx² + 1e-6)` over the last dimension; x = 0 has a finite gradient."""
    x = x.to(dtype).contiguous()  # sums of strided rows add up in another order
    return x * (x.square().sum(-1, keepdim=True) + L2_EPS).rsqrt()


def prepare(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, use_qk_l2norm_in_kernel: bool,
    use_gate_in_kernel: bool, use_beta_sigmoid_in_kernel: bool, allow_neg_eigval: bool,
    lower_bound: float | None, A_log: Tensor | None, dt_bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Finished q and k (one a value head), log decay and β."""
    dtype = accumulation_dtype(v)
    if use_qk_l2norm_in_kernel:
        q, k = l2_normalise(q, dtype), l2_normalise(k, dtype)
    repeats = v.shape[2] // q.shape[2]
    if repeats > 1:
        q, k = q.repeat_interleave(repeats, dim=2), k.repeat_interleave(repeats, dim=2)
    if use_gate_in_kernel:
        g = kda_gate(g, A_log, dt_bias, lower_bound, dtype)
    if use_beta_sigmoid_in_kernel:
        beta = sigmoid(beta.to(dtype))
        beta = 2 * beta if allow_neg_eigval else beta
    return q, k, g, beta
