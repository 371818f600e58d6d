"""Routing and quantile balancing spelled out with loops and sorts: the oracle for every faster path.

Shapes: T tokens, E experts, k chosen experts, B bins. Source: Kimi K3 report (arXiv 2607.24653), Eq. 13-14 and
appendices C-D.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def naive_topk_route(
    logits: Tensor, bias: Tensor, k: int, *, histogram: Tensor | None = None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`topk_route`, one token after another."""
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    scores_TE = logits.to(dtype).sigmoid()
    biased_TE = (scores_TE + bias).detach()
    T, E = logits.shape
    order = [sorted(range(E), key=lambda e: (-row[e], e)) for row in biased_TE.tolist()]
    ids_Tk = torch.tensor([o[:k] for o in order], dtype=torch.int64, device=logits.device).reshape(T, k)
    if histogram is not None:
        bins = histogram.shape[1]
        low = bias.double().min().item() - 1
        width = (bias.double().max().item() - bias.double().min().item() + 2) / bins
        for t in range(T):
            if mask is not None and not mask[t]:
                continue
            cutoff = biased_TE[t, order[t][k]].item()
            for e in range(E):
                margin = cutoff - scores_TE[t, e].item()
                histogram[e, min(max(math.floor((margin - low) / width), 0), bins - 1)] += 1
    return ids_Tk, scores_TE.gather(1, ids_Tk)


def naive_quantile_bias(histogram: Tensor, bias: Tensor, k: int) -> Tensor:
    """`quantile_bias` of one layer, one expert after another, in Python numbers."""
    E, B = histogram.shape
    if int(histogram.sum()) == 0:
        return bias.clone()
    values = bias.double().tolist()
    low, width = min(values) - 1, (max(values) - min(values) + 2) / B
    new = []
    for row in histogram.tolist():
        tokens, before = sum(row), 0
        needed = -(-tokens * k // E)
        for j, count in enumerate(row):
            if before + count >= needed:
                new.append(low + width * (j + (tokens * k / E - before) / count))
                break
            before += count
    mean = sum(new) / E
    return torch.tensor([b - mean for b in new], dtype=bias.dtype, device=bias.device)
