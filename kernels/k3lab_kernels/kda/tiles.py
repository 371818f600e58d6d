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
        a, b, e = (x.view(M, C // (2 * h), 2, h, K) for x in (a_MCK, before, after))
        middle = a[:, :, 1, :1]
        from_key = e[:, :, 0] * middle
        if h >= tile:
            levels.append(h)
            query.append(b[:, :, 1].clone())
            key.append(from_key)
        b[:, :, 1] *= b[:, :, 0, -1:] * middle
        e[:, :, 0] = from_key * e[:, :, 1, :1]
        h *= 2
    return Decays(levels, query, key, in_tile, before.mul_(a_MCK[:, :1]), after)


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


def _decayed_rows(q: Tensor, k: Tensor, query: Tensor) -> Tensor:
    """Rows of the second halves of q and k [M, n, 2, h, K], decayed: [M, n, 2, h, K]."""
    rows = torch.empty_like(q)
    torch.mul(q[:, :, 1], query, out=rows[:, :, 0])
    torch.mul(k[:, :, 1], query, out=rows[:, :, 1])
    return rows


def decayed_products(
    q_MCK: Tensor, k_MCK: Tensor, decays: Decays, tile: int, qk_MCC: Tensor, kk_MCC: Tensor
) -> None:
    """Write the lower triangles of q·kᵀ (with its diagonal) and k·kᵀ (without), decayed, into zeroed [M, C, C]."""
    M, _, K = q_MCK.shape
    for h, query, key in zip(decays.levels, decays.query, decays.key, strict=True):
        q, k = (x.view(M, -1, 2, h, K) for x in (q_MCK, k_MCK))
        rows = _decayed_rows(q, k, query)
        product = rows.flatten(2, 3) @ (k[:, :, 0] * key).mT
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
        q, k, dq, dk = (x.view(M, -1, 2, h, K) for x in (q_MCK, k_MCK, d_q, d_k))
        rows = _decayed_rows(q, k, query)
        keys = k[:, :, 0] * key
        d_product = torch.cat((_blocks(d_qk, h), _blocks(d_kk, h)), 2)
        d_keys = (d_product.mT @ rows.flatten(2, 3)).mul_(key)
        d_rows = (d_product @ keys).view_as(rows).mul_(query.unsqueeze(2))
        dq[:, :, 1] += d_rows[:, :, 0]
        dk[:, :, 1] += d_rows[:, :, 1]
        dk[:, :, 0] += d_keys
        d_query = (q[:, :, 1] * d_rows[:, :, 0]).addcmul_(k[:, :, 1], d_rows[:, :, 1])
        _descend(before, after, d_g, h, d_query, k[:, :, 0] * d_keys)

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


def _descend(
    before: Tensor, after: Tensor, d_g: Tensor, h: int, d_query: Tensor | None, d_key: Tensor | None
) -> None:
    """Undo one doubling of `chunk_decays`: pass gradients of the log products from segments of 2h to their halves."""
    M, C, K = d_g.shape
    b, e, d = (x.view(M, C // (2 * h), 2, h, K) for x in (before, after, d_g))
    through = b[:, :, 1].sum(2)
    b[:, :, 0, -1] += through
    e[:, :, 1, 0] += e[:, :, 0].sum(2)
    if d_query is not None and d_key is not None:
        b[:, :, 1] += d_query
        e[:, :, 0] += d_key
    d[:, :, 1, 0] += through + e[:, :, 0].sum(2)
