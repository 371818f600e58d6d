"""No balancing: the k experts of the highest score, whatever their load.

ids = top-k(s), weights = s at ids, normalised over the k; s = σ(W x) or softmax(W x). The control that shows
what balancing buys. Source: the sparsely gated layer of Shazeer et al. (arXiv 1701.06538), without noise.
T tokens, D hidden size, E experts, k experts a token.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from k3lab.config.checks import one_of, positive
from k3lab.router.base import Router, Routing
from k3lab.router.scores import choose


@dataclass(frozen=True)
class TopKSettings:
    """Settings of the router without balancing."""

    name: str = "topk"
    score: str = "sigmoid"  # sigmoid | softmax
    scale: float = 1.0  # factor on the mixing weights
    normalise: bool = True  # weights add up to scale

    def __post_init__(self) -> None:
        one_of("score", self.score, ["sigmoid", "softmax"])
        positive("scale", self.scale)


class TopK(Router):
    """Keeps no state."""

    def route(self, x_TD: Tensor, mask_T: Tensor | None = None) -> Routing:
        """Choose by the scores alone."""
        logits_TE = self.logits(x_TD, mask_T)
        ids_Tk, scores_Tk = choose(logits_TE, None, self.top_k, self.settings.score)
        return Routing(ids_Tk, self.mixing_weights(scores_Tk), self.expert_counts(ids_Tk, mask_T))
