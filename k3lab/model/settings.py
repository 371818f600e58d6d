"""Settings of the language model, shared by every preset in conf/model/."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from k3lab.config.checks import divides, in_range, one_of, positive


@dataclass(frozen=True)
class ModelSettings:
    """Sizes, pattern and initialisation of the language model."""

    name: str = "nano"
    hidden_size: int = 96  # D, width of the residual stream
    layers: int = 4  # decoder layers; each is one mixer and one feed-forward sublayer
    heads: int = 3  # H, attention heads
    head_dim: int | None = None  # width of one head; null: hidden_size / heads
    vocab_size: int | None = None  # null: what the data needs
    pattern: list[str] | None = None  # mixers by layer, repeated; null: [a] everywhere, or a,a,a,b … b
    last_mixer: str | None = None  # the mixer of the last layer, whatever the pattern says
    eps: float = 1e-5  # added to the mean square in every RMSNorm
    init_std: float | None = None  # of every weight matrix and the embedding at the start; null: 0.5 / √hidden_size
    dropout: float = 0.0  # probability on sublayer outputs
    tie_embeddings: bool = False  # the output head uses the embedding's weights

    def __post_init__(self) -> None:
        for key in ("hidden_size", "layers", "heads", "head_dim", "vocab_size", "eps", "init_std"):
            positive(key, getattr(self, key))
        in_range("layers", self.layers, 1, 1000)
        in_range("dropout", self.dropout, 0, 1, high_open=True)
        if self.head_dim is None:
            divides("hidden_size", self.hidden_size, "heads", self.heads)
            object.__setattr__(self, "head_dim", self.hidden_size // self.heads)
        if self.init_std is None:
            object.__setattr__(self, "init_std", 0.5 * self.hidden_size**-0.5)
        if self.pattern is not None and not self.pattern:
            raise ValueError("pattern=[]: must name at least one mixer, or be null")

    def check(self, config: Any) -> None:
        """Every mixer of the pattern is selected; without a pattern at most two are."""
        for name in self.pattern or []:
            one_of("model.pattern", name, config.mixer)
        if self.last_mixer is not None:
            one_of("model.last_mixer", self.last_mixer, config.mixer)
        if self.pattern is None and len(config.mixer) > 2:
            names = ", ".join(config.mixer)
            raise ValueError(f"model.pattern=null: must be given when mixer=[{names}] selects more than two")

    def warnings(self, config: Any) -> list[str]:
        """Say so when a selected mixer gets no layer."""
        used = set((self.pattern or [])[: self.layers]) | {self.last_mixer}
        if self.pattern is None:
            used |= set(list(config.mixer)[-min(self.layers, 2) :])
        return [
            f"mixer={name}: selected, but no layer of model.pattern has it" for name in config.mixer if name not in used
        ]
