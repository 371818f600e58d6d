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


def sigmoid(x: Tensor) -> Tensor:
    """σ(x), each element by itself."""
    return _Sigmoid.apply(x)


class _Gate(Function):
    """Log decay and its gradient in few passes: logits z [B,T,H,K], speed e^A [H,1], bias [H,K], bound or None."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, speed: Tensor, bias: Tensor, bound: float | None) -> Tensor:
        x = z + bias
        ctx.bound = bound
        if bound is not None:
            y = x.mul_(-speed).exp_().add_(1).reciprocal_()
            ctx.save_for_backward(z, speed, bias, y)
            return y * bound
        softplus = torch.exp(x.abs().neg_()).log1p_().add_(x.clamp_(min=0))
        ctx.save_for_backward(z, speed, bias)
        return softplus.mul_(-speed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_g: Tensor) -> tuple[Tensor | None, ...]:
        z, speed, bias, *y = ctx.saved_tensors
        if ctx.bound is not None:
            d_scaled = torch.addcmul(y[0], y[0], y[0], value=-1).mul_(d_g).mul_(ctx.bound)
            d_x = d_scaled * speed
            d_speed = (z + bias).mul_(d_scaled).sum((0, 1, 3)).unsqueeze(-1) if ctx.needs_input_grad[1] else None
        else:
            x = z + bias
            d_x = torch.exp(-x).add_(1).reciprocal_().mul_(d_g).mul_(-speed)
            softplus = torch.exp(x.abs().neg_()).log1p_().add_(x.clamp_(min=0))
            d_speed = softplus.mul_(d_g).sum((0, 1, 3)).neg_().unsqueeze(-1) if ctx.needs_input_grad[1] else None
        return d_x, d_speed, d_x.sum((0, 1)) if ctx.needs_input_grad[2] else None, None


def kda_gate(z_BTHK: Tensor, A_log: Tensor | None, dt_bias: Tensor | None, lower_bound: float | None, dtype) -> Tensor:
    """Log decay from raw logits: `lower_bound·σ(e^A·(z+bias))`, or `−e^A·softplus(z+bias)` without a bound.

    Sources: Kimi K3 report (arXiv 2607.24653), Eq. 5; Kimi Linear (arXiv 2510.26692).
    """
    heads, K = z_BTHK.shape[2:]
    z = z_BTHK.to(dtype)
    speed = z.new_ones(heads, 1) if A_log is None else A_log.to(dtype).reshape(heads, 1).exp()
    bias = z.new_zeros(heads, K) if dt_bias is None else dt_bias.to(dtype).reshape(heads, K)
    return _Gate.apply(z, speed, bias, lower_bound)


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
