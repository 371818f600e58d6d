"""Balancing by an auxiliary loss on each micro-batch: L = α·E·Σ_i f_i·P_i.

f_i is the share of the micro-batch's k·T choices that fell on expert i (a constant to the gradient), P_i the
mean of the token-wise normalised scores of expert i. A balanced f gives exactly α, since Σ P = 1; a load on
the experts with high scores gives more. ∂L/∂P_i = α·E·f_i pushes scores away from loaded experts.
Source: Fedus et al., Switch Transformers (arXiv 2101.03961), Eq. 4–6, where k = 1.
T tokens, D hidden size, E experts, k experts a token.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from k3lab.config.checks import non_negative, one_of, positive
from k3lab.router.base import Router, Routing
from k3lab.router.scores import all_scores, choose


@dataclass(frozen=True)
class SwitchAuxSettings:
    """Settings of balancing by an auxiliary loss."""

    name: str = "switch_aux"
    alpha: float = 0.01  # coefficient of the loss
    score: str = "softmax"  # softmax | sigmoid
    scale: float = 1.0  # factor on the mixing weights
    normalise: bool = True  # weights add up to scale

    def __post_init__(self) -> None:
        non_negative("alpha", self.alpha)
        one_of("score", self.score, ["softmax", "sigmoid"])
        positive("scale", self.scale)


class SwitchAux(Router):
    """Keeps no state; the loss is returned."""

    def route(self, x_TD: Tensor, mask_T: Tensor | None = None) -> Routing:
        """Choose by the scores, and return the loss over real tokens (0 when there are none)."""
        logits_TE = self.logits(x_TD, mask_T)
        ids_Tk, scores_Tk = choose(logits_TE, None, self.top_k, self.settings.score)
        counts_E = self.expert_counts(ids_Tk, mask_T)
        aux_loss = self.load_loss(logits_TE, counts_E, mask_T)
        return Routing(ids_Tk, self.mixing_weights(scores_Tk), counts_E, None, aux_loss)

    def load_loss(self, logits_TE: Tensor, counts_E: Tensor, mask_T: Tensor | None) -> Tensor:
        """α·E·Σ f·P, a scalar in the dtype of the logits."""
        share_TE = all_scores(logits_TE, self.settings.score)
        if self.settings.score == "sigmoid":
            share_TE = share_TE / share_TE.sum(-1, keepdim=True)
        if mask_T is not None:
            share_TE = share_TE.masked_fill(~mask_T[:, None], 0)
        choices = counts_E.sum().clamp_min(1).to(share_TE.dtype)
        f_E = counts_E.to(share_TE.dtype) / choices
        p_E = share_TE.sum(0) * (self.top_k / choices)
        return self.settings.alpha * self.experts * (f_E * p_E).sum()
