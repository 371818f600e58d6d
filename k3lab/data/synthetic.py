"""What synthetic tasks share: sequences made on the spot, a finite validation set, token numbers as text.

Each sequence comes out of two rows of uniform numbers: its plan fixes where answers stand, its fill
the rest. Plans are drawn from a stream of their own, so that a step's answers can be counted without
making its sequences.

Shapes: B sequences, T tokens, R uniform numbers of a sequence.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from k3lab.config.errors import UserError
from k3lab.data.base import NO_TARGET, Batch, Source, to_batch
from k3lab.data.counter import SIZES, TRAIN, VALIDATION, uniform


class Synthetic(Source):
    """Base of tasks whose settings have seq_len, batch_size, vocab_size, val_seq_len and val_examples."""

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self.vocab_size = settings.vocab_size
        self._counted = (-1, 0)  # the newest step whose targets were counted: micro-batches ask again

    @abstractmethod
    def fill_draws(self, length: int) -> int:
        """Uniform numbers that the tokens of one sequence take."""

    @abstractmethod
    def answers(self, plan_BR: np.ndarray, length: int) -> np.ndarray:
        """Targets of each sequence, int64 [B]."""

    @abstractmethod
    def make(self, plan_BR: np.ndarray, fill_BR: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and targets, int64 [B,T], each row a function of its own rows of numbers."""

    def plan_draws(self, length: int) -> int:
        """Uniform numbers that fix where the answers of one sequence stand; 0: always at the same places."""
        return 0

    def val_scored_from(self) -> int:
        """First position of a validation sequence whose answer counts."""
        return 0

    def val_length(self) -> int:
        """Tokens of a validation sequence."""
        return self.settings.val_seq_len or self.settings.seq_len

    def train_batch(self, step: int, first: int, count: int) -> Batch:
        length = self.settings.seq_len
        fill_BR = uniform(self.seed, TRAIN, step, first, count, self.fill_draws(length))
        return to_batch(*self.make(self._plan(step, first, count), fill_BR, length))

    def targets_in_step(self, step: int) -> int:
        if self._counted[0] != step:
            plan_BR = self._plan(step, 0, self.settings.batch_size)
            self._counted = (step, int(self.answers(plan_BR, self.settings.seq_len).sum()))
        return self._counted[1]

    def val_batch(self, index: int, first: int, count: int) -> Batch:
        length, start = self.val_length(), index * self.settings.batch_size + first
        # Rows in a line, so that the set does not depend on how it is cut into batches.
        fill_BR = uniform(0, VALIDATION, 0, start, count, self.fill_draws(length))
        plan_BR = uniform(0, VALIDATION, 1, start, count, self.plan_draws(length))
        tokens, targets = self.make(plan_BR, fill_BR, length)
        targets[:, : self.val_scored_from()] = NO_TARGET
        targets[start + np.arange(count) >= self.settings.val_examples] = NO_TARGET
        return to_batch(tokens, targets)

    def val_batches_available(self) -> int:
        return -(-self.settings.val_examples // self.settings.batch_size)

    def encode(self, text: str) -> list[int]:
        try:
            ids = [int(word) for word in text.split()]
        except ValueError as error:
            raise UserError(
                f"prompt={text}: data={self.settings.name} takes token numbers with spaces between"
            ) from error
        for i in ids:
            if not 0 <= i < self.vocab_size:
                raise UserError(f"prompt: token {i} must lie in [0, {self.vocab_size - 1}]")
        return ids

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))

    def _plan(self, step: int, first: int, count: int) -> np.ndarray:
        return uniform(self.seed, SIZES, step, first, count, self.plan_draws(self.settings.seq_len))


def no_targets(count: int, length: int) -> np.ndarray:
    """Targets without any loss, int64 [B,T]."""
    return np.full((count, length), NO_TARGET, dtype=np.int64)


def below(u: np.ndarray, total: int | np.ndarray) -> np.ndarray:
    """Uniform numbers in [0, 1) as whole numbers below `total` (one for all, or one for each), int64."""
    return (u * total).astype(np.int64)
