"""Stable LatentMoE: routed experts work in a narrower space than the model.

y = Σ_shared E(x) + W_up RMSNorm(Σ_top-k p_i E_i(W_down x)). The router and the shared experts read the full
width; the norm keeps the size of the mix from drifting with the weights p. Source: Kimi K3 (arXiv 2607.24653).
B batch, T time, D hidden size, C latent width, F hidden width of an expert, E experts, k experts a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from k3lab.config.checks import in_range, non_negative, one_of, positive
from k3lab.ffn.base import FFN, RouterFactory, linear
from k3lab.ffn.experts import Experts
from k3lab.ffn.gated import Gated, matched_hidden
from k3lab.model_dims import ModelDims
from k3lab.router.base import Routing


@dataclass(frozen=True)
class LeadingLayerSettings:
    """Settings of one leading dense layer, read by the component of that name."""

    name: str = "situ"
    hidden: int | None = None

    def at_layer(self, index: int) -> LeadingLayerSettings:
        """The same layer everywhere."""
        return self


@dataclass(frozen=True)
class LatentMoESettings:
    """Settings of the latent mixture of experts."""

    name: str = "latent_moe"
    experts: int = 16  # E, routed experts
    top_k: int = 4  # k, routed experts a token, below E
    shared: int = 1  # experts of the full width that every token meets besides
    latent: int | None = None  # C, width of the routed experts; null: half of the model's, to a multiple of 8
    expert_hidden: int | None = None  # F; null: k + shared of them make 8/3·D
    activation: str = "situ"  # situ | swiglu, of experts and leading dense layers
    leading_dense: int = 0  # first decoder layers that have a dense layer instead
    dense_hidden: int | None = None  # hidden width of those; null: 8/3·D

    def __post_init__(self) -> None:
        in_range("experts", self.experts, 2, float("inf"))
        if not 1 <= self.top_k < self.experts:
            raise ValueError(f"top_k={self.top_k}: must lie in [1, {self.experts - 1}], below experts={self.experts}")
        non_negative("shared", self.shared)
        positive("latent", self.latent)
        positive("expert_hidden", self.expert_hidden)
        one_of("activation", self.activation, ["situ", "swiglu"])
        non_negative("leading_dense", self.leading_dense)
        positive("dense_hidden", self.dense_hidden)

    def at_layer(self, index: int) -> LatentMoESettings | LeadingLayerSettings:
        """A dense layer in the first ``leading_dense`` layers, experts after them."""
        if index < self.leading_dense:
            return LeadingLayerSettings(self.activation, self.dense_hidden)
        return self

    def check(self, config: Any) -> None:
        """At least one layer keeps its experts."""
        if self.leading_dense >= config.model.layers:
            raise ValueError(
                f"ffn.leading_dense={self.leading_dense}: must be below model.layers={config.model.layers}, or no "
                f"layer has experts; a dense model is ffn={self.activation}"
            )

    def warnings(self, config: Any) -> list[str]:
        """Say so when the weights cannot teach the router anything."""
        if self.top_k == 1:
            return [
                "ffn.top_k=1 with ffn=latent_moe: the norm cancels the only weight, so the loss cannot train the router"
            ]
        return []


class LatentMoE(FFN):
    """Routed experts in a latent space, beside shared ones on the full width."""

    def __init__(self, settings: LatentMoESettings, dims: ModelDims, router: RouterFactory | None) -> None:
        super().__init__(settings, dims)
        if router is None:
            raise ValueError("router=None: ffn=latent_moe needs one")
        width, std = dims.hidden_size, dims.init_std
        latent = settings.latent or -(-width // 16) * 8
        hidden = settings.expert_hidden or matched_hidden(width, settings.top_k + settings.shared)
        self.router = router(width, settings.experts, settings.top_k)
        self.w_down = linear(width, latent, std)
        self.experts = Experts(settings.experts, latent, hidden, settings.activation, std)
        self.norm_weight = nn.Parameter(torch.ones(latent))
        self.w_up = linear(latent, width, std)
        # experts without weights of their own add up to one layer of their joint width
        self.shared = Gated(width, settings.shared * hidden, settings.activation, std) if settings.shared else None

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None = None) -> tuple[Tensor, Routing | None]:
        """Route and map every token, padding too; padding stays out of the routing's statistics."""
        assert self.router is not None
        x_ND = x_BTD.flatten(0, 1)
        routing = self.router.route(x_ND, None if mask_BT is None else mask_BT.flatten())
        mix_NC = self.experts(self.w_down(x_ND), routing.ids_Tk, routing.weights_Tk)
        mix_NC = F.rms_norm(mix_NC, mix_NC.shape[-1:], self.norm_weight.to(mix_NC.dtype), self.dims.eps)
        y_ND = self.w_up(mix_NC.to(self.w_up.weight.dtype))
        if self.shared is not None:
            y_ND = y_ND + self.shared(x_ND)
        return y_ND.to(x_BTD.dtype).unflatten(0, x_BTD.shape[:2]), routing

    def flops_per_token(self) -> int:
        """Router, both projections, k routed experts, shared experts."""
        assert self.router is not None
        projections = 2 * (self.w_down.weight.numel() + self.w_up.weight.numel())
        shared = self.shared.flops_per_token() if self.shared is not None else 0
        routed = self.experts.flops_per_token(self.settings.top_k)
        return self.router.flops_per_token() + projections + routed + shared

    def parameters_active(self) -> int:
        """All but the routed experts that a token does not meet."""
        idle = self.settings.experts - self.settings.top_k
        return super().parameters_active() - idle * self.experts.parameters_each()
