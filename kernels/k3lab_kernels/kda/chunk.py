"""Chunkwise KDA in PyTorch: dense matmuls inside chunks, a scan over chunks between them, and its exact gradient.

With Γ_i = e^(g_0+…+g_i) and Λ_i = e^(g_i+1+…+g_C−1) in a chunk that starts from the state S:
`(I + β·tril(kkᵀ decayed, −1)) V' = β(v − (k·Γ) S)`,  `o = scale·((q·Γ) S + tril(qkᵀ decayed) V')`,
`S' = Γ_C·S + (k·Λ)ᵀ V'`. Source: Kimi Linear (arXiv 2510.26692), section 3.1.

Shapes: M chunk × head, C rows of a chunk, K key dim, V value dim, N sequence, H head (value heads throughout).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from k3lab_kernels.kda.layout import Layout
from k3lab_kernels.kda.tiles import Decays, decayed_products, decayed_products_backward


class Chunks(NamedTuple):
    """Inputs in chunk layout, in the dtype of accumulation."""

    q: Tensor  # [M, C, K]
    k: Tensor  # [M, C, K]
    v: Tensor  # [M, C, V]
    g: Tensor  # [M, C, K], log decay
    beta: Tensor  # [M, C, 1]


class Kept(NamedTuple):
    """What the backward pass needs beyond the inputs and their decays."""

    qk: Tensor  # [M, C, C], lower triangle
    kk: Tensor  # [M, C, C], strict lower triangle
    inverse: Tensor  # [M, C, C], (I + β·kk)^-1
    error: Tensor  # [M, C, V], v − (k·Γ) S
    value: Tensor  # [M, C, V], V'
    state: Tensor  # [M, K, V], state before each chunk


def split_inputs(layout: Layout, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, dtype) -> Chunks:
    """Token layout → chunk layout; padding rows have k = v = β = 0 and decay 1, so they change nothing."""
    return Chunks(*(layout.split(x, dtype) for x in (q, k, v, g, beta.unsqueeze(-1))))


def chunk_forward(
    x: Chunks, decays: Decays, state_NHKV: Tensor, steps: list[tuple[int, int]], scale: float, tile: int
) -> tuple[Tensor, Tensor, Kept]:
    """Outputs [M, C, V] and final states [N·H, K, V]; `state_NHKV` is overwritten with them."""
    M, C, K = x.q.shape
    qk_MCC, kk_MCC = decayed_products(x.q, x.k, decays, tile)
    eye = torch.eye(C, dtype=x.q.dtype, device=x.q.device)
    inverse_MCC = torch.linalg.solve_triangular(
        x.beta * kk_MCC, eye.expand(M, C, C), upper=False, unitriangular=True
    )
    k_start, k_end, carry = x.k * decays.start, x.k * decays.end, decays.start[:, -1].unsqueeze(-1)
    error, value = torch.empty_like(x.v), torch.empty_like(x.v)
    states = x.v.new_empty(M, K, x.v.shape[-1])
    for lo, hi in steps:
        running = state_NHKV[: hi - lo]
        states[lo:hi] = running
        error[lo:hi] = torch.baddbmm(x.v[lo:hi], k_start[lo:hi], running, alpha=-1)
        value[lo:hi] = inverse_MCC[lo:hi] @ (x.beta[lo:hi] * error[lo:hi])
        running.mul_(carry[lo:hi]).baddbmm_(k_end[lo:hi].mT, value[lo:hi])
    out = torch.baddbmm(qk_MCC @ value, x.q * decays.start, states).mul_(scale)
    return out, state_NHKV, Kept(qk_MCC, kk_MCC, inverse_MCC, error, value, states)


def chunk_backward(
    d_out: Tensor, d_state: Tensor, x: Chunks, decays: Decays, kept: Kept, steps: list[tuple[int, int]],
    scale: float, tile: int,
) -> tuple[Chunks, Tensor]:  # fmt: skip
    """Gradients of the inputs and of the initial states, from those of outputs and final states (overwritten)."""
    d_out = d_out * scale
    q_start, k_start, k_end = x.q * decays.start, x.k * decays.start, x.k * decays.end
    carry = decays.start[:, -1].unsqueeze(-1)
    d_value = kept.qk.mT @ d_out
    state_from_out = q_start.mT @ d_out
    d_right = torch.empty_like(d_value)  # of β(v − (k·Γ) S)
    d_after = torch.empty_like(kept.state)  # of the state after each chunk
    for lo, hi in reversed(steps):
        running = d_state[: hi - lo]
        d_after[lo:hi] = running
        d_value[lo:hi].baddbmm_(k_end[lo:hi], running)
        d_right[lo:hi] = kept.inverse[lo:hi].mT @ d_value[lo:hi]
        running.mul_(carry[lo:hi]).add_(state_from_out[lo:hi])
        running.baddbmm_(k_start[lo:hi].mT, x.beta[lo:hi] * d_right[lo:hi], alpha=-1)

    d_v = x.beta * d_right
    d_lower = d_right @ kept.value.mT  # minus the gradient of β·kk
    d_beta = (d_right * kept.error).sum(-1, keepdim=True) - (d_lower * kept.kk).sum(-1, keepdim=True)
    d_kk = d_lower.mul_(-x.beta)
    d_qk = d_out @ kept.value.mT

    d_q_start = (d_out @ kept.state.mT) * decays.start
    d_k_start = (d_v @ kept.state.mT) * decays.start
    d_k_end = (kept.value @ d_after.mT) * decays.end
    d_start = x.q * d_q_start - x.k * d_k_start
    d_start[:, -1] += (kept.state * d_after).sum(-1) * decays.start[:, -1]
    d_q, d_k, d_g = decayed_products_backward(
        d_qk, d_kk, x.q, x.k, decays, tile, d_start=d_start, d_end=x.k * d_k_end
    )
    d_k += d_k_end
    d_k -= d_k_start
    d_q += d_q_start
    return Chunks(d_q, d_k, d_v, d_g, d_beta), d_state
