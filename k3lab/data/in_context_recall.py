"""data=in_context_recall: a dictionary that is shown in use (MAD, arXiv 2403.17844).

A sequence is `k v k v …`. Every key has one value, drawn anew for each sequence; keys come back at random, and
wherever one stands that was shown before, the target is its value. Keys come from the lower half of the
vocabulary, values from the upper.

Shapes: B sequences, T tokens, P pairs, K keys, R uniform numbers of a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from k3lab.config.checks import divides, positive
from k3lab.data.base import NO_TARGET
from k3lab.data.synthetic import Synthetic, below, no_targets


@dataclass(frozen=True)
class InContextRecallSettings:
    """Sizes of the task."""

    name: str = "in_context_recall"
    seq_len: int = 64  # tokens a training sequence; even
    batch_size: int = 32  # sequences an optimizer step, over all devices and micro-batches
    vocab_size: int = 16  # keys from its lower half, values from its upper half
    val_seq_len: int | None = None  # tokens a validation sequence; null: as in training
    val_examples: int = 1024  # sequences of the validation set

    def __post_init__(self) -> None:
        for key in ("seq_len", "batch_size", "vocab_size", "val_seq_len", "val_examples"):
            positive(key, getattr(self, key))
        for key in ("seq_len", "vocab_size", "val_seq_len"):
            value = getattr(self, key)
            if value is not None and (value % 2 or value < 4):
                raise ValueError(f"{key}={value}: must be an even number, at least 4")

    def check(self, config: Any) -> None:
        """Refuse a global batch that devices × accumulation do not divide, and too small a model vocabulary."""
        parts = config.trainer.devices * config.trainer.accumulate
        divides("data.batch_size", self.batch_size, "trainer.devices × trainer.accumulate", parts)
        vocabulary = config.model.vocab_size
        if vocabulary is not None and vocabulary < self.vocab_size:
            raise ValueError(f"model.vocab_size={vocabulary}: must be at least {self.vocab_size}, or null")


class InContextRecall(Synthetic):
    """Values of keys that were shown with them earlier in the sequence."""

    settings: InContextRecallSettings

    def plan_draws(self, length: int) -> int:
        return length // 2

    def fill_draws(self, length: int) -> int:
        return self.settings.vocab_size // 2

    def answers(self, plan_BR: np.ndarray, length: int) -> np.ndarray:
        return _seen_before(below(plan_BR, self.settings.vocab_size // 2)).sum(axis=1)

    def make(self, plan_BR: np.ndarray, fill_BR: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        half = self.settings.vocab_size // 2
        key_BP = below(plan_BR, half)
        value_BP = np.take_along_axis(half + below(fill_BR, half), key_BP, axis=1)
        tokens = np.stack([key_BP, value_BP], axis=2).reshape(len(key_BP), -1)
        targets = no_targets(len(key_BP), length)
        targets[:, ::2] = np.where(_seen_before(key_BP), value_BP, NO_TARGET)
        return tokens, targets


def _seen_before(key_BP: np.ndarray) -> np.ndarray:
    """Which keys stand in the same row further left as well, bool [B,P]."""
    order = np.argsort(key_BP, axis=1, kind="stable")
    ordered = np.take_along_axis(key_BP, order, axis=1)
    again = np.pad(ordered[:, 1:] == ordered[:, :-1], ((0, 0), (1, 0)))
    seen = np.empty_like(again)
    np.put_along_axis(seen, order, again, axis=1)
    return seen
