"""Quantile balancing without a histogram: the oracle that `k3lab.router.quantile` is judged by.

Same rule, b'_j = quantile_{k/E} of α_i − s_ij over the whole global batch, less the mean of b'; but the order
statistics are taken from the scores themselves. α depends on the bias alone, not on the other tokens, so the
batch could be cut anywhere; the quantile cannot, so every real token's scores are kept, [N,E] fp32, until the
global batch ends, and gathered from all ranks there: 4·E bytes a token and layer, where the histogram needs a
fixed 4·E·B. Meant for measuring, not for large runs.
Source: Kimi K3 (arXiv 2607.24653), Eq. 13–14.
T tokens of a micro-batch, N real tokens counted so far, D hidden size, E experts, k experts a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from k3lab.config.checks import one_of, positive
from k3lab.router.base import Router, Routing
from k3lab_kernels.router import exact_quantile_bias, topk_route


@dataclass(frozen=True)
class QuantileExactSettings:
    """Settings of exact quantile balancing."""

    name: str = "quantile_exact"
    score: str = "sigmoid"  # sigmoid alone, like the histogram that it is compared with
    scale: float = 1.0  # factor on the mixing weights
    normalise: bool = True  # weights add up to scale

    def __post_init__(self) -> None:
        one_of("score", self.score, ["sigmoid"])
        positive("scale", self.scale)


class QuantileExact(Router):
    """``pending`` [N,E] fp32 holds the scores counted so far and grows with each micro-batch.

    It is part of the state dict like any statistic, so a checkpoint in mid-accumulation has all its rows, and
    loading one takes on its length.
    """

    summed = False

    def __init__(self, settings: QuantileExactSettings, hidden_size: int, experts: int, top_k: int) -> None:
        super().__init__(settings, hidden_size, experts, top_k)
        self.bias = torch.zeros(experts, dtype=torch.float32)
        self.pending = torch.zeros(0, experts, dtype=torch.float32)

    def route(self, x_TD: Tensor, mask_T: Tensor | None = None) -> Routing:
        """Choose by score + bias, weigh by score; in training also return all scores, NaN at padding."""
        assert self.bias is not None
        logits_TE = self.logits(x_TD, mask_T)
        ids_Tk, scores_Tk = topk_route(logits_TE, self.bias, self.top_k)
        statistics = None
        if self.training:
            statistics = torch.sigmoid(logits_TE.detach()).float()
            if mask_T is not None:  # marked, not removed: shapes stay fixed for torch.compile
                statistics = statistics.masked_fill(~mask_T[:, None], torch.nan)
        return Routing(ids_Tk, self.mixing_weights(scores_Tk), self.expert_counts(ids_Tk, mask_T), statistics)

    @torch.no_grad()
    def count(self, routing: Routing) -> None:
        """Append the scores of the micro-batch's real tokens."""
        if self.training and routing.statistics is not None:
            assert self.pending is not None
            real_T = ~routing.statistics[:, 0].isnan()
            self.pending = torch.cat([self.pending, routing.statistics[real_T]])

    @torch.no_grad()
    def update(self, pooled: Tensor) -> None:
        """Replace the bias by the quantiles of ``pooled`` [N,E]; no tokens keep it."""
        assert self.bias is not None
        if len(pooled):
            self.bias.copy_(exact_quantile_bias(pooled, self.bias, self.top_k))

    def reset(self) -> None:
        """Drop the scores of the finished global batch."""
        assert self.pending is not None
        self.pending = self.pending.new_zeros(0, self.experts)

    def gather(self, group: dist.ProcessGroup | None) -> Tensor:
        """Scores of all ranks in rank order, [ΣN,E]; ranks may hold different numbers of tokens."""
        assert self.pending is not None
        ranks = dist.get_world_size(group)
        rows = self.pending.new_tensor([len(self.pending)], dtype=torch.int64)
        rows_R = [torch.zeros_like(rows) for _ in range(ranks)]
        dist.all_gather(rows_R, rows, group=group)
        lengths = [int(n) for n in rows_R]
        padded = self.pending.new_zeros(max(lengths), self.experts)
        padded[: len(self.pending)] = self.pending
        scores_R = [torch.empty_like(padded) for _ in range(ranks)]
        dist.all_gather(scores_R, padded, group=group)
        return torch.cat([scores[:n] for scores, n in zip(scores_R, lengths, strict=True)])

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        stored = state_dict.get(f"{prefix}pending")
        if stored is not None and self.pending is not None:
            self.pending = self.pending.new_zeros(len(stored), self.experts)
        super()._load_from_state_dict(state_dict, prefix, *args)
