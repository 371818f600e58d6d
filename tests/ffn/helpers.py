"""Small feed-forward layers, and a slow loop over tokens and experts that they are judged by."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from k3lab.ffn.base import FFN
from k3lab.ffn.experts import Experts
from k3lab.ffn.latent_moe import LatentMoE, LatentMoESettings
from k3lab.ffn.moe import MoE, MoESettings
from k3lab.ffn.situ import SiTU, SiTUSettings
from k3lab.ffn.swiglu import SwiGLU, SwiGLUSettings
from k3lab.model_dims import ModelDims
from k3lab.router.base import Router
from k3lab.router.quantile import Quantile, QuantileSettings

OPTIONS: dict[str, tuple[Any, Any]] = {
    "swiglu": (SwiGLU, SwiGLUSettings),
    "situ": (SiTU, SiTUSettings),
    "moe": (MoE, MoESettings),
    "latent_moe": (LatentMoE, LatentMoESettings),
}
SMALL = {"experts": 6, "top_k": 2, "shared": 2, "expert_hidden": 8}


def quantile(hidden_size: int, experts: int, top_k: int) -> Router:
    return Quantile(QuantileSettings(bins=100), hidden_size, experts, top_k)


def make(name: str, width: int = 16, init_std: float = 0.3, **settings: Any) -> FFN:
    """A layer whose weights are the same for every call."""
    cls, settings_cls = OPTIONS[name]
    if name.endswith("moe"):
        settings = SMALL | settings
    dims = ModelDims(hidden_size=width, heads=2, head_dim=8, init_std=init_std)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return cls(settings_cls(**settings), dims, quantile)


def inputs(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def swiglu(a: Tensor, u: Tensor) -> Tensor:
    return a * torch.sigmoid(a) * u


def situ(a: Tensor, u: Tensor) -> Tensor:
    return 4 * torch.tanh(a / 4) * torch.sigmoid(a) * 25 * torch.tanh(u / 25)


def gated(w_in: Tensor, w_out: Tensor, activation: str, x: Tensor) -> Tensor:
    """One gated layer on one token."""
    hidden = w_out.shape[1]
    return w_out @ {"swiglu": swiglu, "situ": situ}[activation](w_in[:hidden] @ x, w_in[hidden:] @ x)


def loop(experts: Experts, activation: str, x_TD: Tensor, ids_Tk: Tensor, weights_Tk: Tensor) -> Tensor:
    """Σ_k weights · expert(x), token by token and choice by choice."""
    rows = []
    for x, ids, weights in zip(x_TD, ids_Tk.tolist(), weights_Tk, strict=True):
        each = [gated(experts.w_in[e], experts.w_out[e], activation, x) for e in ids]
        rows.append(sum(w * y for w, y in zip(weights, each, strict=True)))
    return torch.stack(rows)  # type: ignore[arg-type]


def whole_layer(ffn: FFN, x_TD: Tensor) -> Tensor:
    """The formula of moe and latent_moe on [T,D], with the shared experts taken apart again."""
    assert isinstance(ffn, (MoE, LatentMoE))
    assert ffn.router is not None
    routing, activation = ffn.router.route(x_TD), ffn.settings.activation
    if isinstance(ffn, LatentMoE):
        mix = loop(ffn.experts, activation, x_TD @ ffn.w_down.weight.T, routing.ids_Tk, routing.weights_Tk)
        rms = (mix.square().mean(-1, keepdim=True) + ffn.dims.eps).sqrt()
        y_TD = (mix / rms * ffn.norm_weight) @ ffn.w_up.weight.T
    else:
        y_TD = loop(ffn.experts, activation, x_TD, routing.ids_Tk, routing.weights_Tk)
    if ffn.shared is None:
        return y_TD
    gate, up = ffn.shared.w_in.weight.chunk(2)
    for part in range(ffn.settings.shared):
        f = gate.shape[0] // ffn.settings.shared
        rows = slice(part * f, (part + 1) * f)
        w_in, w_out = torch.cat([gate[rows], up[rows]]), ffn.shared.w_out.weight[:, rows]
        y_TD = y_TD + torch.stack([gated(w_in, w_out, activation, x) for x in x_TD])
    return y_TD


def gradients(y: Tensor, of: list[Tensor]) -> tuple[Tensor, ...]:
    """Gradients of a loss that weighs every output differently."""
    return torch.autograd.grad((y * inputs(*y.shape, seed=7).to(y.dtype)).sum(), of)
