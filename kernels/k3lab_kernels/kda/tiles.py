"""Sums over features of decayed products, Σ_d x_id·y_jd·e^(g_j+1 + … + g_i), as batched matmuls in any gate.

A chunk is halved again and again. The tile below the diagonal of a segment has its queries in the second half and
its keys in the first; anchored at the first query row m, both factors e^(g_m+1+…+g_i) and e^(g_j+1+…+g_m) are ≤ 1
and neither reads a row after i. Factors are products of e^g built up with the segments: no difference of cumulative
sums is ever taken, so a mask of −1000 costs its neighbours no digits, and gradients of g are sums without
cancellation. Halving stops at single rows, whose decay is 1, or, where a bound keeps e^(−g·(tile−1)) in range, at
tiles of several rows handled as one matmul anchored at their first row.

Shapes: M chunk × head, C rows of a chunk, K key dim, n segments of a chunk, h rows of half a segment.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LOWEST_FOR_16 = -5.5


def tile_rows(lower_bound: float | None) -> int:
    """Rows of a diagonal tile whose decay the bound keeps inside fp32: 1 for an unbounded gate.

    The largest exponent is 15·5.5 or 7·10 nats, halved by `_span`, well inside ±87.
    """
    if lower_bound is None:
        return 1
    return 16 if lower_bound >= LOWEST_FOR_16 else 8


def _span(tile: int) -> float:
    """Half of the largest exponent of a diagonal tile, as a power of two so that it multiplies exactly."""
    return 2.0**58 if tile == 16 else 2.0**50


@dataclass(frozen=True)
class Decays:
    """Decay factors of chunks; all are products of e^g over the rows named here."""

    levels: list[int]  # half lengths h, ascending
    query: list[Tensor]  # a level: [M, n, h, K], rows m+1 … i of the second half
    key: list[Tensor]  # a level: [M, n, h, K], rows j+1 … m of the first half
    tile: Tensor | None  # [M, C, K], rows after the tile's first … i; None for tiles of one row
    start: Tensor  # [M, C, K], rows 0 … i
    end: Tensor  # [M, C, K], rows i+1 … C−1


def chunk_decays(g_MCK: Tensor, tile: int) -> Decays:
    """Products of e^g for every level, from the log decay of chunks."""
    M, C, K = g_MCK.shape
    a_MCK = g_MCK.exp()
    before, after = torch.ones_like(a_MCK), torch.ones_like(a_MCK)
    levels, query, key, in_tile = [], [], [], None
    h = 1
    while h < C:
        if h == tile and tile > 1:
            in_tile = before.clone()
        (b0, b1), (e0, e1) = (_halves(x, h) for x in (before, after))
        middle = a_MCK.view(M, C // (2 * h), 2 * h, K)[:, :, h : h + 1]
        from_key = e0 * middle
        if h >= tile:
            levels.append(h)
            query.append(b1.clone())
            key.append(from_key)
        b1.mul_(b0[:, :, -1:] * middle)
        torch.mul(from_key, e1[:, :, :1], out=e0)
        h *= 2
    return Decays(levels, query, key, in_tile, before.mul_(a_MCK[:, :1]), after)


def _halves(x_MCK: Tensor, h: int) -> tuple[Tensor, ...]:
    """Views of the first and the second halves of all segments of 2h rows: two [M, n, h, K]."""
    M, C, K = x_MCK.shape
    return x_MCK.view(M, C // (2 * h), 2, h, K).unbind(2)


def _blocks(x_MCC: Tensor, h: int) -> Tensor:
    """View of the tiles of a level: [M, n, h (query), h (key)]."""
    M, C, _ = x_MCC.shape
    n = C // (2 * h)
    return x_MCC.view(M, n, 2, h, n, 2, h)[:, :, 1, :, :, 0].diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)


def _diagonal_blocks(x_MCC: Tensor, tile: int) -> Tensor:
    """View of the diagonal tiles: [M, n, tile, tile]."""
    M, C, _ = x_MCC.shape
    n = C // tile
    return x_MCC.view(M, n, tile, n, tile).diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)


def _decayed_rows(q1: Tensor, k1: Tensor, query: Tensor) -> Tensor:
    """Decayed rows of the second halves of q and k [M, n, h, K], one above the other: [M, n, 2h, K]."""
    M, n, h, K = query.shape
    rows = query.new_empty(M, n, 2, h, K)
    q_rows, k_rows = rows.unbind(2)
    torch.mul(q1, query, out=q_rows)
    torch.mul(k1, query, out=k_rows)
    return rows.view(M, n, 2 * h, K)


def decayed_products(q_MCK: Tensor, k_MCK: Tensor, decays: Decays, tile: int, qk_MCC: Tensor, kk_MCC: Tensor) -> None:
    """Write the lower triangles of q·kᵀ (with its diagonal) and k·kᵀ (without), decayed, into zeroed [M, C, C]."""
    M, _, K = q_MCK.shape
    for h, query, key in zip(decays.levels, decays.query, decays.key, strict=True):
        (_, q1), (k0, k1) = (_halves(x, h) for x in (q_MCK, k_MCK))
        product = _decayed_rows(q1, k1, query) @ (k0 * key).mT
        _blocks(qk_MCC, h).copy_(product[:, :, :h])
        _blocks(kk_MCC, h).copy_(product[:, :, h:])
    if decays.tile is not None:
        up = decays.tile * _span(tile)
        rows = torch.stack((q_MCK * up, k_MCK * up), 1).view(M, 2, -1, tile, K)
        product = (rows @ (k_MCK / up).view(M, 1, -1, tile, K).mT).tril_(-1)
        _diagonal_blocks(qk_MCC, tile).copy_(product[:, 0])
        _diagonal_blocks(kk_MCC, tile).copy_(product[:, 1])
    qk_MCC.diagonal(dim1=1, dim2=2).copy_((q_MCK * k_MCK).sum(-1))


def decayed_products_backward(
    d_qk: Tensor, d_kk: Tensor, q_MCK: Tensor, k_MCK: Tensor, decays: Decays, tile: int,
    d_start: Tensor, d_end: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and the log decay g; only the strict lower triangle of d_kk and the lower one of d_qk count.

    `d_start` and `d_end` [M, C, K]: gradients of the logarithms of `decays.start` and `decays.end`; overwritten.
    """
    M, _C, K = q_MCK.shape
    diagonal = d_qk.diagonal(dim1=1, dim2=2).unsqueeze(-1)
    d_q, d_k = diagonal * k_MCK, diagonal * q_MCK
    d_g = torch.zeros_like(q_MCK)
    d_g[:, 0] = d_start.sum(1)
    before, after = d_start, d_end  # gradients of the log products of the segments, from the chunk downwards

    for h, query, key in reversed(list(zip(decays.levels, decays.query, decays.key, strict=True))):
        (_, q1), (k0, k1), (_, dq1), (dk0, dk1) = (_halves(x, h) for x in (q_MCK, k_MCK, d_q, d_k))
        d_product = torch.cat((_blocks(d_qk, h), _blocks(d_kk, h)), 2)
        d_keys = (d_product.mT @ _decayed_rows(q1, k1, query)).mul_(key)
        d_rows = (d_product @ (k0 * key)).view(M, -1, 2, h, K).mul_(query.unsqueeze(2))
        d_q1, d_k1 = d_rows.unbind(2)
        dq1.add_(d_q1)
        dk1.add_(d_k1)
        dk0.add_(d_keys)
        _descend(before, after, d_g, h, (q1 * d_q1).addcmul_(k1, d_k1), d_keys.mul_(k0))

    if decays.tile is not None:
        up = decays.tile * _span(tile)
        q, k = ((x * up).view(M, -1, tile, K) for x in (q_MCK, k_MCK))
        keys = (k_MCK / up).view(M, -1, tile, K)
        t_qk, t_kk = (_diagonal_blocks(x, tile).tril(-1) for x in (d_qk, d_kk))
        dq, dk = ((t @ keys).view_as(up) * up for t in (t_qk, t_kk))
        d_keys = (t_qk.mT @ q + t_kk.mT @ k).view_as(up) / up
        before += q_MCK * dq + k_MCK * (dk - d_keys)
        d_q += dq
        d_k += dk + d_keys
        h = tile // 2
        while h >= 1:
            _descend(before, after, d_g, h, None, None)
            h //= 2
    return d_q, d_k, d_g


def _sum_rows(x: Tensor) -> Tensor:
    """Sum of [M, n, h, K] over h; for few rows adding is much faster than reducing. May be a view."""
    h = x.shape[2]
    if h == 1:
        return x.select(2, 0)
    return x.sum(2) if h > 4 else _sum_rows(x[:, :, : h // 2] + x[:, :, h // 2 :])


def _descend(before: Tensor, after: Tensor, d_g: Tensor, h: int, d_query: Tensor | None, d_key: Tensor | None) -> None:
    """Undo one doubling of `chunk_decays`: pass gradients of the log products from segments of 2h to their halves."""
    M, C, K = d_g.shape
    (b0, b1), (e0, e1) = (_halves(x, h) for x in (before, after))
    d_middle = d_g.view(M, C // (2 * h), 2 * h, K).select(2, h)
    through = _sum_rows(b1)
    d_middle.add_(through)
    b0.select(2, -1).add_(through)
    e1.select(2, 0).add_(_sum_rows(e0))
    if d_query is not None and d_key is not None:
        b1.add_(d_query)
        e0.add_(d_key)
    d_middle.add_(_sum_rows(e0))
