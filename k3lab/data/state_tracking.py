"""data=state_tracking: after every permutation, what is the product of all so far?

The word problem of a symmetric group (Merrill et al., arXiv 2404.08819): S3 is the smallest that is not
commutative, S5 the smallest that is not solvable. A token is a permutation p of 0 … n−1, numbered in
lexicographic order of (p(0), …, p(n−1)); the target at each position is the number of p_t ∘ … ∘ p_1, the
newest applied last. Validation runs on longer sequences and scores what lies beyond training's length.

Shapes: B sequences, T tokens, R uniform numbers of a sequence, G elements of the group.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np

from k3lab.config.checks import divides, one_of, positive
from k3lab.data.synthetic import Synthetic, below

ORDERS = {"s3": 6, "s5": 120}


@dataclass(frozen=True)
class StateTrackingSettings:
    """The group and the sizes of the task."""

    name: str = "state_tracking"
    group: str = "s3"  # s3: 6 permutations of three things; s5: 120 of five
    seq_len: int = 40  # permutations a training sequence
    batch_size: int = 64  # sequences an optimizer step, over all devices and micro-batches
    val_seq_len: int | None = 256  # permutations a validation sequence; null: as in training
    val_beyond: bool = True  # score only the positions of longer validation sequences that training never had
    val_examples: int = 256  # sequences of the validation set

    def __post_init__(self) -> None:
        one_of("group", self.group, ORDERS)
        for key in ("seq_len", "batch_size", "val_seq_len", "val_examples"):
            positive(key, getattr(self, key))

    @property
    def vocab_size(self) -> int:
        """The elements of the group."""
        return ORDERS[self.group]

    def check(self, config: Any) -> None:
        """Refuse a global batch that devices × accumulation do not divide, and too small a model vocabulary."""
        parts = config.trainer.devices * config.trainer.accumulate
        divides("data.batch_size", self.batch_size, "trainer.devices × trainer.accumulate", parts)
        vocabulary = config.model.vocab_size
        if vocabulary is not None and vocabulary < self.vocab_size:
            raise ValueError(f"model.vocab_size={vocabulary}: must be at least {self.vocab_size}, or null")


class StateTracking(Synthetic):
    """Running product of random permutations, answered at every position."""

    settings: StateTrackingSettings

    def fill_draws(self, length: int) -> int:
        return length

    def answers(self, plan_BR: np.ndarray, length: int) -> np.ndarray:
        return np.full(len(plan_BR), length)

    def val_scored_from(self) -> int:
        s = self.settings
        return s.seq_len if s.val_beyond and self.val_length() > s.seq_len else 0

    def make(self, plan_BR: np.ndarray, fill_BR: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        tokens = below(fill_BR, self.vocab_size)
        product_GG = products(self.settings.group)
        state = tokens.copy()
        for t in range(1, length):
            state[:, t] = product_GG[tokens[:, t], state[:, t - 1]]
        return tokens, state


@cache
def products(group: str) -> np.ndarray:
    """The group's table, int64 [G,G]: entry (a, b) is the number of a ∘ b, which applies b first."""
    elements = list(permutations(range(int(group[1:]))))
    number = {element: i for i, element in enumerate(elements)}
    return np.array([[number[tuple(a[i] for i in b)] for b in elements] for a in elements])
