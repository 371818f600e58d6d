"""Loss-free balancing by small steps: after each global batch b_j ← b_j + γ·sign(c̄ − c_j).

c_j is the number of tokens that the whole global batch sent to expert j, c̄ its mean over the experts. An
overloaded expert loses γ, an underloaded one gains γ, whatever the size of the error: far from balance this
takes about (spread of scores)/γ batches, and near it the bias keeps trembling by γ.
Source: Wang et al., arXiv 2408.15664, Algorithm 1; the routers of DeepSeek-V3.
T tokens, D hidden size, E experts, k experts a token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from k3lab.config.checks import one_of, positive
from k3lab.router.base import Router, Routing
from k3lab.router.scores import choose


@dataclass(frozen=True)
class SignBiasSettings:
    """Settings of balancing by the sign of the load error."""

    name: str = "sign_bias"
    gamma: float = 0.001  # step of the bias after each global batch, in units of score
    score: str = "sigmoid"  # sigmoid | softmax
    scale: float = 1.0  # factor on the mixing weights
    normalise: bool = True  # weights add up to scale

    def __post_init__(self) -> None:
        positive("gamma", self.gamma)
        one_of("score", self.score, ["sigmoid", "softmax"])
        positive("scale", self.scale)


class SignBias(Router):
    """``pending`` [E] int64 counts the tokens of the global batch under way."""

    def __init__(self, settings: SignBiasSettings, hidden_size: int, experts: int, top_k: int) -> None:
        super().__init__(settings, hidden_size, experts, top_k)
        self.bias = torch.zeros(experts, dtype=torch.float32)
        self.pending = torch.zeros(experts, dtype=torch.int64)

    def route(self, x_TD: Tensor, mask_T: Tensor | None = None) -> Routing:
        """Choose by score + bias, weigh by score."""
        logits_TE = self.logits(x_TD, mask_T)
        ids_Tk, scores_Tk = choose(logits_TE, self.bias, self.top_k, self.settings.score)
        counts_E = self.expert_counts(ids_Tk, mask_T)
        statistics = counts_E if self.training else None
        return Routing(ids_Tk, self.mixing_weights(scores_Tk), counts_E, statistics)

    @torch.no_grad()
    def update(self, pooled: Tensor) -> None:
        """One step of γ towards even counts; no tokens, no step."""
        assert self.bias is not None
        # E·(c̄ − c) in integers: its sign is exact
        error_E = pooled.sum() - pooled * self.experts
        self.bias += self.settings.gamma * torch.sign(error_E)
