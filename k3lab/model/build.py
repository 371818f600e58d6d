"""From a configuration to a language model: the one place that looks components up by name."""

from __future__ import annotations

from typing import Any

from k3lab.config.registry import component
from k3lab.decay.base import Decay
from k3lab.ffn.base import FFN
from k3lab.mixer.base import Mixer
from k3lab.model.language_model import LanguageModel
from k3lab.model.layer import DecoderLayer
from k3lab.model.pattern import layer_pattern
from k3lab.model_dims import ModelDims
from k3lab.router.base import Router


def build_model(config: Any, vocab_size: int) -> LanguageModel:
    """Return the model of ``config`` for data of ``vocab_size`` token ids, drawn from torch's global generator.

    ``model.vocab_size`` may ask for more ids than the data has; ValueError if it asks for fewer.
    Every weight matrix and the embedding start as N(0, init_std²), at every depth alike. The default,
    0.5 / √hidden_size, gives Kimi K3's 0.006 at K3's width and 0.02 at a width of 640; on bytes it trains the
    nano model 0.2 bit/byte further in 150 steps than 0.02 does. Output projections are not shrunk with depth:
    the topologies compared here need that to different degrees or not at all.
    """
    model = config.model
    vocab = model.vocab_size or vocab_size
    if vocab < vocab_size:
        raise ValueError(f"model.vocab_size={vocab}: must be at least the {vocab_size} token ids of the data")
    names = layer_pattern(model.pattern, model.last_mixer, model.layers, list(config.mixer))
    layers = []
    for index, name in enumerate(names):
        dims = ModelDims(
            hidden_size=model.hidden_size,
            heads=model.heads,
            head_dim=model.head_dim,
            eps=model.eps,
            init_std=model.init_std,
            dropout=model.dropout,
            layer_index=index,
            layers=model.layers,
        )
        layers.append(DecoderLayer(index, _mixer(config, name, dims), _ffn(config, dims), model.dropout))
    residual = component("residual", config.residual.name)(
        config.residual, 2 * model.layers, model.hidden_size, model.eps
    )
    return LanguageModel(vocab, model.hidden_size, layers, residual, model.init_std, model.tie_embeddings)


def _mixer(config: Any, name: str, dims: ModelDims) -> Mixer:
    def decay(heads: int, head_dim: int) -> Decay:
        return component("decay", config.decay.name)(config.decay, heads, head_dim)

    return component("mixer", name)(config.mixer[name], dims, decay)


def _ffn(config: Any, dims: ModelDims) -> FFN:
    def router(hidden_size: int, experts: int, top_k: int) -> Router:
        return component("router", config.router.name)(config.router, hidden_size, experts, top_k)

    settings = config.ffn.at_layer(dims.layer_index)
    return component("ffn", settings.name)(settings, dims, router)
