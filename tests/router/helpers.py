"""Small routers, inputs with uneven load, and the arithmetic that the tests judge them by."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from k3lab.router.base import Router
from k3lab.router.quantile import Quantile, QuantileSettings
from k3lab.router.quantile_exact import QuantileExact, QuantileExactSettings
from k3lab.router.sign_bias import SignBias, SignBiasSettings
from k3lab.router.switch_aux import SwitchAux, SwitchAuxSettings
from k3lab.router.topk import TopK, TopKSettings

OPTIONS: dict[str, tuple[Any, Any]] = {
    "quantile": (Quantile, QuantileSettings),
    "quantile_exact": (QuantileExact, QuantileExactSettings),
    "sign_bias": (SignBias, SignBiasSettings),
    "switch_aux": (SwitchAux, SwitchAuxSettings),
    "topk": (TopK, TopKSettings),
}
BIASED = ["quantile", "quantile_exact", "sign_bias"]


def make(name: str, experts: int = 8, top_k: int = 2, width: int = 16, **settings: Any) -> Router:
    """A router in training mode whose weights are the same for every call."""
    cls, settings_cls = OPTIONS[name]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return cls(settings_cls(**settings), width, experts, top_k)


def tokens(count: int, width: int = 16, seed: int = 0, shift: float = 1.0) -> Tensor:
    """Inputs with a common direction, so that some experts are more wanted than others."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(width, generator=torch.Generator().manual_seed(99))
    return torch.randn(count, width, generator=generator) + shift * common


def frozen(scores_TE: Tensor, name: str, top_k: int, **settings: Any) -> tuple[Router, Tensor]:
    """A router and an input whose scores are exactly what is asked, up to the rounding of logit and sigmoid."""
    experts = scores_TE.shape[1]
    router = make(name, experts, top_k, experts, **settings)
    with torch.no_grad():
        router.weight.copy_(torch.eye(experts))
    return router, torch.logit(scores_TE)


def max_vio(counts_E: Tensor) -> float:
    """max c / mean c − 1."""
    return (counts_E.max() / counts_E.double().mean() - 1).item()


def state(router: Router) -> dict[str, Tensor]:
    """A copy of everything a checkpoint holds."""
    return {name: tensor.clone() for name, tensor in router.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether two states have the same names, dtypes, shapes and bits."""
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)
