"""data=palindrome: random tokens, a separator, then the same tokens backwards (Kimi Linear, arXiv 2510.26692, §5.1).

A sequence of length T is `x_1 … x_n <sep> x_n … x_2` with n = T/2; from the separator on, each target is the
next token of the reversal. Token 0 is the separator.

Shapes: B sequences, T tokens, R uniform numbers of a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from k3lab.config.checks import divides, positive
from k3lab.data.synthetic import Synthetic, below, no_targets

SEPARATOR = 0


@dataclass(frozen=True)
class PalindromeSettings:
    """Sizes of the task."""

    name: str = "palindrome"
    seq_len: int = 64  # tokens a training sequence, the separator among them; half of them are answered
    batch_size: int = 32  # sequences an optimizer step, over all devices and micro-batches
    vocab_size: int = 32  # the separator and the tokens to repeat
    val_seq_len: int | None = None  # tokens a validation sequence; null: as in training
    val_examples: int = 1024  # sequences of the validation set

    def __post_init__(self) -> None:
        for key in ("seq_len", "batch_size", "vocab_size", "val_seq_len", "val_examples"):
            positive(key, getattr(self, key))
        if self.vocab_size < 3:
            raise ValueError(f"vocab_size={self.vocab_size}: must be at least 3")
        for key, length in (("seq_len", self.seq_len), ("val_seq_len", self.val_seq_len or 2)):
            if length % 2:
                raise ValueError(f"{key}={length}: must be an even number")

    def check(self, config: Any) -> None:
        """Refuse a global batch that devices × accumulation do not divide, and too small a model vocabulary."""
        parts = config.trainer.devices * config.trainer.accumulate
        divides("data.batch_size", self.batch_size, "trainer.devices × trainer.accumulate", parts)
        vocabulary = config.model.vocab_size
        if vocabulary is not None and vocabulary < self.vocab_size:
            raise ValueError(f"model.vocab_size={vocabulary}: must be at least {self.vocab_size}, or null")


class Palindrome(Synthetic):
    """Reversal of what was read: the whole sequence must be held in memory."""

    settings: PalindromeSettings

    def fill_draws(self, length: int) -> int:
        return length // 2

    def answers(self, plan_BR: np.ndarray, length: int) -> np.ndarray:
        return np.full(len(plan_BR), length // 2)

    def make(self, plan_BR: np.ndarray, fill_BR: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        count, half = len(fill_BR), length // 2
        forward = 1 + below(fill_BR, self.vocab_size - 1)
        backward = forward[:, ::-1]
        separator = np.full((count, 1), SEPARATOR)
        targets = no_targets(count, length)
        targets[:, half:] = backward
        return np.concatenate([forward, separator, backward[:, :-1]], axis=1), targets
