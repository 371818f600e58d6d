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
from k3lab_kernels.kda.tiles import chunk_decays, decayed_products, decayed_products_backward

BLOCK_ELEMENTS = 1 << 18  # of one temporary on a CPU: work inside chunks goes in blocks that stay in the cache


class Chunks(NamedTuple):
    """Inputs in chunk layout, in the dtype of accumulation."""

    q: Tensor  # [M, C, K]
    k: Tensor  # [M, C, K]
    v: Tensor  # [M, C, V]
    g: Tensor  # [M, C, K], log decay
    beta: Tensor  # [M, C, 1]


class Inside(NamedTuple):
    """What a chunk needs for the scan, made without looking at other chunks."""

    q_start: Tensor  # [M, C, K], q·Γ
    k_start: Tensor  # [M, C, K], k·Γ
    k_end: Tensor  # [M, C, K], k·Λ
    carry: Tensor  # [M, K, 1], Γ of the last row


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


def _blocks(x: Chunks) -> list[tuple[int, int]]:
    """Slices of chunks to work on at a time; a chunk's result does not depend on them."""
    M, C, _ = x.q.shape
    size = max(1, BLOCK_ELEMENTS // (C * max(x.q.shape[-1], x.v.shape[-1], C))) if x.q.device.type == "cpu" else M
    return [(lo, min(lo + size, M)) for lo in range(0, M, size)] if M else []


def _inside(x: Chunks, tile: int, kept: Kept | None) -> tuple[Inside, tuple[Tensor, Tensor, Tensor]]:
    """Decayed rows of all chunks, and their squares (qk, kk, inverse), made unless they were kept."""
    M, C, K = x.q.shape
    inside = Inside(torch.empty_like(x.q), torch.empty_like(x.q), torch.empty_like(x.q), x.q.new_empty(M, K, 1))
    if kept is None:
        qk_MCC, kk_MCC = x.q.new_zeros(M, C, C), x.q.new_zeros(M, C, C)
        inverse_MCC, eye = x.q.new_empty(M, C, C), torch.eye(C, dtype=x.q.dtype, device=x.q.device)
    else:
        qk_MCC, kk_MCC, inverse_MCC = kept[:3]
    for lo, hi in _blocks(x):
        q, k, beta = x.q[lo:hi], x.k[lo:hi], x.beta[lo:hi]
        decays = chunk_decays(x.g[lo:hi], tile)
        torch.mul(q, decays.start, out=inside.q_start[lo:hi])
        torch.mul(k, decays.start, out=inside.k_start[lo:hi])
        torch.mul(k, decays.end, out=inside.k_end[lo:hi])
        inside.carry[lo:hi] = decays.start[:, -1].unsqueeze(-1)
        if kept is None:
            decayed_products(q, k, decays, tile, qk_MCC[lo:hi], kk_MCC[lo:hi])
            lower, unit = beta * kk_MCC[lo:hi], eye.expand(hi - lo, C, C)
            inverse_MCC[lo:hi] = torch.linalg.solve_triangular(lower, unit, upper=False, unitriangular=True)
    return inside, (qk_MCC, kk_MCC, inverse_MCC)


def chunk_forward(
    x: Chunks, state_NHKV: Tensor, steps: list[tuple[int, int]], scale: float, tile: int
) -> tuple[Tensor, Kept]:
    """Outputs [M, C, V] and what the backward pass needs; `state_NHKV` [N·H, K, V] becomes the final states."""
    inside, kept = _scan(x, state_NHKV, steps, tile)
    return torch.bmm(kept.qk, kept.value).baddbmm_(inside.q_start, kept.state).mul_(scale), kept


def _scan(x: Chunks, state_NHKV: Tensor, steps: list[tuple[int, int]], tile: int) -> tuple[Inside, Kept]:
    """Work inside the chunks, then the scan over them; `state_NHKV` becomes the final states."""
    inside, (qk_MCC, kk_MCC, inverse_MCC) = _inside(x, tile, None)
    error, value = torch.empty_like(x.v), torch.empty_like(x.v)
    states = x.v.new_empty(len(x.v), x.q.shape[-1], x.v.shape[-1])
    for lo, hi in steps:
        running = state_NHKV[: hi - lo]
        states[lo:hi] = running
        torch.baddbmm(x.v[lo:hi], inside.k_start[lo:hi], running, alpha=-1, out=error[lo:hi])
        torch.bmm(inverse_MCC[lo:hi], x.beta[lo:hi] * error[lo:hi], out=value[lo:hi])
        running.mul_(inside.carry[lo:hi]).baddbmm_(inside.k_end[lo:hi].mT, value[lo:hi])
    return inside, Kept(qk_MCC, kk_MCC, inverse_MCC, error, value, states)


def chunk_backward(
    d_out: Tensor, d_state: Tensor, x: Chunks, state_NHKV: Tensor, kept: Kept | None, steps: list[tuple[int, int]],
    scale: float, tile: int,
) -> Chunks:  # fmt: skip
    """Gradients of the inputs from those of the outputs; `d_state` turns from final into initial states'."""
    if kept is None:
        inside, kept = _scan(x, state_NHKV, steps, tile)
    else:
        inside, _ = _inside(x, tile, kept)
    d_out = d_out * scale
    d_value = kept.qk.mT @ d_out
    state_from_out = inside.q_start.mT @ d_out
    d_right = torch.empty_like(d_value)  # of β(v − (k·Γ) S)
    d_after = torch.empty_like(kept.state)  # of the state after each chunk
    for lo, hi in reversed(steps):
        running = d_state[: hi - lo]
        d_after[lo:hi] = running
        d_value[lo:hi].baddbmm_(inside.k_end[lo:hi], running)
        torch.bmm(kept.inverse[lo:hi].mT, d_value[lo:hi], out=d_right[lo:hi])
        running.mul_(inside.carry[lo:hi]).add_(state_from_out[lo:hi])
        running.baddbmm_(inside.k_start[lo:hi].mT, x.beta[lo:hi] * d_right[lo:hi], alpha=-1)

    gradients = Chunks(*(torch.empty_like(t) for t in x))
    for lo, hi in _blocks(x):
        _inside_backward(
            Chunks(*(t[lo:hi] for t in gradients)), Chunks(*(t[lo:hi] for t in x)), Kept(*(t[lo:hi] for t in kept)),
            d_out[lo:hi], d_right[lo:hi], d_after[lo:hi], tile,
        )  # fmt: skip
    return gradients


def _inside_backward(
    into: Chunks, x: Chunks, kept: Kept, d_out: Tensor, d_right: Tensor, d_after: Tensor, tile: int
) -> None:
    """Gradients of some chunks' inputs, once the scan has given those of their right-hand sides and states."""
    decays = chunk_decays(x.g, tile)
    d_v = torch.mul(x.beta, d_right, out=into.v)
    d_lower = d_right @ kept.value.mT  # minus the gradient of β·kk
    torch.sum(d_right * kept.error, -1, keepdim=True, out=into.beta)
    into.beta.sub_((d_lower * kept.kk).sum(-1, keepdim=True))
    d_kk = d_lower.mul_(x.beta).neg_()
    d_qk = d_out @ kept.value.mT

    d_q_start = (d_out @ kept.state.mT).mul_(decays.start)
    d_k_start = (d_v @ kept.state.mT).mul_(decays.start)  # minus the gradient
    d_k_end = (kept.value @ d_after.mT).mul_(decays.end)
    d_start = (x.q * d_q_start).addcmul_(x.k, d_k_start, value=-1)
    d_start[:, -1] += (kept.state * d_after).sum(-1) * decays.start[:, -1]
    d_q, d_k, d_g = decayed_products_backward(d_qk, d_kk, x.q, x.k, decays, tile, d_start=d_start, d_end=x.k * d_k_end)
    torch.add(d_q, d_q_start, out=into.q)
    torch.sub(d_k.add_(d_k_end), d_k_start, out=into.k)
    into.g.copy_(d_g)
