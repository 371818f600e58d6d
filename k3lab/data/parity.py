"""data=parity: after every bit, is the number of ones so far odd?

The smallest task of state tracking: it has two states, and a linear recurrence whose transitions have no
negative eigenvalue cannot follow them to any length (Grazzi et al., arXiv 2411.12537, Theorem 1). A model can
memorise what fits its training length, so validation runs on longer sequences and scores what lies beyond.

Shapes: B sequences, T tokens, R uniform numbers of a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from k3lab.config.checks import divides, positive
from k3lab.data.synthetic import Synthetic, below


@dataclass(frozen=True)
class ParitySettings:
    """Sizes of the task."""

    name: str = "parity"
    seq_len: int = 40  # bits a training sequence
    batch_size: int = 64  # sequences an optimizer step, over all devices and micro-batches
    val_seq_len: int | None = 256  # bits a validation sequence; null: as in training
    val_beyond: bool = True  # score only the positions of longer validation sequences that training never had
    val_examples: int = 256  # sequences of the validation set

    def __post_init__(self) -> None:
        for key in ("seq_len", "batch_size", "val_seq_len", "val_examples"):
            positive(key, getattr(self, key))

    @property
    def vocab_size(self) -> int:
        """The two bits."""
        return 2

    def check(self, config: Any) -> None:
        """Refuse a global batch that devices × accumulation do not divide, and too small a model vocabulary."""
        parts = config.trainer.devices * config.trainer.accumulate
        divides("data.batch_size", self.batch_size, "trainer.devices × trainer.accumulate", parts)
        vocabulary = config.model.vocab_size
        if vocabulary is not None and vocabulary < self.vocab_size:
            raise ValueError(f"model.vocab_size={vocabulary}: must be at least {self.vocab_size}, or null")


class Parity(Synthetic):
    """Running parity of random bits, answered at every position."""

    settings: ParitySettings

    def fill_draws(self, length: int) -> int:
        return length

    def answers(self, plan_BR: np.ndarray, length: int) -> np.ndarray:
        return np.full(len(plan_BR), length)

    def val_scored_from(self) -> int:
        s = self.settings
        return s.seq_len if s.val_beyond and self.val_length() > s.seq_len else 0

    def make(self, plan_BR: np.ndarray, fill_BR: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        bits = below(fill_BR, 2)
        return bits, np.cumsum(bits, axis=1) % 2
