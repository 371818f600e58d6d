"""data=stack: several last-in-first-out stacks at once (Kimi Linear, arXiv 2510.26692, §5.1).

A sequence is a series of operations of three tokens, `push i x` or `pop i x`, where x of a pop is what was
pushed last onto stack i and not popped yet. The target stands at the i of every pop. Pushes and pops are
equally likely unless all stacks are empty; a push goes to any stack, a pop to any that is not empty.
Tokens: 0 push, 1 pop, then the stacks, then the elements. The last operation may be cut off.

Shapes: B sequences, T tokens, O operations, S stacks, R uniform numbers of a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from k3lab.config.checks import divides, positive
from k3lab.data.base import NO_TARGET
from k3lab.data.synthetic import Synthetic, below, no_targets

PUSH, POP, FIRST_STACK = 0, 1, 2


@dataclass(frozen=True)
class StackSettings:
    """Sizes of the task."""

    name: str = "stack"
    seq_len: int = 64  # tokens a training sequence, three an operation
    batch_size: int = 32  # sequences an optimizer step, over all devices and micro-batches
    stacks: int = 4  # stacks in use
    elements: int = 16  # distinct elements that can be pushed
    val_seq_len: int | None = None  # tokens a validation sequence; null: as in training
    val_examples: int = 1024  # sequences of the validation set

    def __post_init__(self) -> None:
        for key in ("seq_len", "batch_size", "stacks", "val_seq_len", "val_examples"):
            positive(key, getattr(self, key))
        if self.elements < 2:
            raise ValueError(f"elements={self.elements}: must be at least 2")
        for key, length in (("seq_len", self.seq_len), ("val_seq_len", self.val_seq_len)):
            if length is not None and length < 6:
                raise ValueError(f"{key}={length}: must be at least 6, a push and a pop")

    @property
    def vocab_size(self) -> int:
        """Two operations, the stacks and the elements."""
        return FIRST_STACK + self.stacks + self.elements

    def check(self, config: Any) -> None:
        """Refuse a global batch that devices × accumulation do not divide, and too small a model vocabulary."""
        parts = config.trainer.devices * config.trainer.accumulate
        divides("data.batch_size", self.batch_size, "trainer.devices × trainer.accumulate", parts)
        vocabulary = config.model.vocab_size
        if vocabulary is not None and vocabulary < self.vocab_size:
            raise ValueError(f"model.vocab_size={vocabulary}: must be at least {self.vocab_size}, or null")


class Stack(Synthetic):
    """Recall of the newest element of one of many stacks."""

    settings: StackSettings

    def plan_draws(self, length: int) -> int:
        return -(-length // 3)

    def fill_draws(self, length: int) -> int:
        return 2 * -(-length // 3)

    def answers(self, plan_BR: np.ndarray, length: int) -> np.ndarray:
        asked = (length + 1) // 3  # operations whose second token is there
        return _pops(plan_BR)[:, :asked].sum(axis=1)

    def make(self, plan_BR: np.ndarray, fill_BR: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        s, (count, operations) = self.settings, plan_BR.shape
        pop_BO = _pops(plan_BR)
        which_BO, element_BO = _play(pop_BO, fill_BR[:, :operations], fill_BR[:, operations:], s.stacks, s.elements)
        stack_BO, shown_BO = FIRST_STACK + which_BO, FIRST_STACK + s.stacks + element_BO
        tokens = np.stack([np.where(pop_BO, POP, PUSH), stack_BO, shown_BO], axis=2).reshape(count, -1)
        targets = no_targets(count, 3 * operations)
        targets[:, 1::3] = np.where(pop_BO, shown_BO, NO_TARGET)
        return tokens[:, :length], targets[:, :length]


def _pops(plan_BO: np.ndarray) -> np.ndarray:
    """Which operations are pops, bool [B,O].

    The number of stored elements must go up from 0 and up or down evenly elsewhere: so does the distance of a
    symmetric walk from its start, which needs no loop.
    """
    walk = np.cumsum(np.where(plan_BO < 0.5, 1, -1), axis=1)
    stored = np.abs(np.pad(walk, ((0, 0), (1, 0))))
    return stored[:, 1:] < stored[:, :-1]


def _play(
    pop_BO: np.ndarray, u_stack_BO: np.ndarray, u_element_BO: np.ndarray, stacks: int, elements: int
) -> tuple[np.ndarray, np.ndarray]:
    """Stack and element of every operation, int64 [B,O] each; stacks are lists linked from the top down."""
    count, operations = pop_BO.shape
    rows = np.arange(count)
    which_BO = below(u_stack_BO, stacks)  # of the pushes; those of pops follow below
    element_BO = below(u_element_BO, elements)
    top_BS = np.full((count, stacks), -1)  # the push that is on top of each stack; -1: empty
    under_BO = np.full((count, operations), -1)  # the push under each push
    for o in range(operations):
        pop = pop_BO[:, o]
        filled_BS = np.cumsum(top_BS >= 0, axis=1)
        rank = below(u_stack_BO[:, o], filled_BS[:, -1])
        which = np.where(pop, (filled_BS <= rank[:, None]).sum(axis=1), which_BO[:, o])
        top = top_BS[rows, which]
        under_BO[:, o] = top
        element_BO[:, o] = np.where(pop, element_BO[rows, top], element_BO[:, o])
        which_BO[:, o] = which
        top_BS[rows, which] = np.where(pop, under_BO[rows, top], o)
    return which_BO, element_BO
