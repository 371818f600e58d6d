"""Quantile balancing: each bias is set, not stepped, to where its expert gets its even share of the batch.

Scores s = σ(W x); a token goes to the top k of s + b and is weighed by s alone. Let α_i be the (k+1)-th largest
of s_i + b, the score an expert must beat to be chosen by token i; expert j with bias b_j would be chosen by all
tokens with r_ij = α_i − s_ij < b_j. Its even share of m tokens among E experts is m·k/E, so after a global
batch b'_j = quantile of r_·j at k/E over all its tokens, less the mean of b'. This is the dual update of the
balanced assignment program. b' replaces b and routes from the next global batch on.

The quantile is read from a histogram of ``bins`` equal bins of [min b − 1, max b + 1], which holds every r since
s lies in [0,1]. Counts are integers and add up, so the result has the same bits however the batch was cut into
micro-batches and ranks; its error is at most one bin. Every token adds one count for every expert.
Source: Kimi K3 (arXiv 2607.24653), Eq. 13–14, App. C–D; the dual also at kexue.fm 11619.
T tokens, D hidden size, E experts, k experts a token, B bins, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from k3lab.config.checks import in_range, one_of, positive
from k3lab.router.base import Router, Routing
from k3lab_kernels.router import quantile_bias, topk_route


@dataclass(frozen=True)
class QuantileSettings:
    """Settings of quantile balancing by histogram."""

    name: str = "quantile"
    bins: int = 1000  # B, histogram bins an expert; the bias is exact to one bin, about 2/B or more
    score: str = "sigmoid"  # sigmoid alone: the bins span scores in [0, 1], each on its own scale
    scale: float = 1.0  # factor on the mixing weights
    normalise: bool = True  # weights add up to scale

    def __post_init__(self) -> None:
        in_range("bins", self.bins, 2, 1 << 20)
        one_of("score", self.score, ["sigmoid", "softmax"])
        if self.score != "sigmoid":
            raise ValueError(
                f"score={self.score}: must be sigmoid with router=quantile, whose bins are too coarse for softmax "
                "scores near 1/experts; sign_bias, switch_aux and topk take softmax"
            )
        positive("scale", self.scale)


class Quantile(Router):
    """``pending`` [E,B] int32 is the histogram of the global batch under way; each row adds up to its tokens."""

    def __init__(self, settings: QuantileSettings, hidden_size: int, experts: int, top_k: int) -> None:
        super().__init__(settings, hidden_size, experts, top_k)
        self.bias = torch.zeros(experts, dtype=torch.float32)
        self.pending = torch.zeros(experts, settings.bins, dtype=torch.int32)

    def route(self, x_TD: Tensor, mask_T: Tensor | None = None) -> Routing:
        """Choose by score + bias, weigh by score; in training also bin this micro-batch's margins."""
        assert self.bias is not None
        assert self.pending is not None
        logits_TE = self.logits(x_TD, mask_T)
        histogram = torch.zeros_like(self.pending) if self.training else None
        ids_Tk, scores_Tk = topk_route(logits_TE, self.bias, self.top_k, histogram=histogram, mask=mask_T)
        return Routing(ids_Tk, self.mixing_weights(scores_Tk), self.expert_counts(ids_Tk, mask_T), histogram)

    @torch.no_grad()
    def update(self, pooled: Tensor) -> None:
        """Replace the bias by the quantiles of ``pooled`` [E,B]; an empty histogram keeps it."""
        assert self.bias is not None
        self.bias.copy_(quantile_bias(pooled, self.bias, self.top_k))

    @classmethod
    @torch.no_grad()
    def update_stack(cls, routers: list[Router], pooled: Tensor) -> None:
        """Solve L layers at once from [L,E,B]."""
        bias_LE = quantile_bias(pooled, torch.stack([r.bias for r in routers if r.bias is not None]), routers[0].top_k)
        for router, bias_E in zip(routers, bias_LE, strict=True):
            assert router.bias is not None
            router.bias.copy_(bias_E)
