"""The sizes of a model that its mixers and feed-forward layers are built from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelDims:
    """Sizes and constants shared by all sublayers, seen from one decoder layer."""

    hidden_size: int  # D, width of the residual stream
    heads: int  # H, attention heads
    head_dim: int  # width of one head; heads · head_dim may differ from hidden_size
    eps: float = 1e-5  # added to the mean square in every RMSNorm
    init_std: float = 0.02  # standard deviation of every weight matrix at the start
    dropout: float = 0.0  # probability on sublayer outputs, applied by the decoder layer
    layer_index: int = 0  # this decoder layer, 0-based
    layers: int = 1  # decoder layers in the whole model
