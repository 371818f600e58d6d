"""data=mqar: multi-query associative recall as Zoology defines it (Arora et al., arXiv 2312.04927, §4).

A sequence of length T states n pairs `k v k v …`; the rest holds each key once more, at gaps that
follow a power law, and the model must answer with the key's value at that position. Keys come from
the lower half of the vocabulary (0 excluded), values from the upper half, neither twice in a
sequence; all other places hold random tokens, or 0. Only answers carry a loss.

Shapes: B sequences, T tokens, N pairs, S slots where a query may stand (every second place).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from k3lab.config.checks import divides, in_range, positive
from k3lab.config.errors import UserError
from k3lab.data.base import NO_TARGET, Batch, Source, to_batch
from k3lab.data.counter import SIZES, TRAIN, VALIDATION, uniform


@dataclass(frozen=True)
class MQARSettings:
    """Sizes of the task."""

    name: str = "mqar"
    seq_len: int = 64  # tokens a training sequence
    batch_size: int = 32  # sequences an optimizer step, over all devices and micro-batches
    vocab_size: int = 512  # keys from its lower half, values from its upper half
    num_kv_pairs: int | None = 8  # pairs a training sequence; null: as many as fit, seq_len / 4
    train_lengths: list[int] | None = None  # several training sizes, mixed evenly; null: seq_len alone
    train_pairs: list[int] | None = None  # pairs of each of train_lengths
    val_seq_len: int | None = None  # tokens a validation sequence; null: as in training
    val_num_kv_pairs: int | None = None  # pairs a validation sequence; null: as in training
    val_examples: int = 1024  # sequences of the validation set
    power_a: float = 0.01  # exponent of the gaps: small keeps queries near, 1 spreads them evenly
    random_fill: bool = True  # random tokens between the queries; false: zeros

    def __post_init__(self) -> None:
        if self.num_kv_pairs is None:
            fit = min(self.seq_len // 4, self.vocab_size // 2 - 1)
            object.__setattr__(self, "num_kv_pairs", max(1, fit))
        for key in ("seq_len", "batch_size", "vocab_size", "num_kv_pairs", "val_examples"):
            positive(key, getattr(self, key))
        positive("val_seq_len", self.val_seq_len)
        positive("val_num_kv_pairs", self.val_num_kv_pairs)
        in_range("power_a", self.power_a, 0, 1, low_open=True)
        if self.vocab_size % 2 or self.vocab_size < 4:
            raise ValueError(f"vocab_size={self.vocab_size}: must be an even number, at least 4")
        lengths, pairs = self.train_lengths, self.train_pairs
        if (lengths is None) != (pairs is None) or (lengths is not None and not 0 < len(lengths) == len(pairs or [])):
            raise ValueError(f"train_lengths={lengths}: must be as many numbers as train_pairs={pairs}, or both null")
        if max(lengths or [0]) > self.seq_len:
            raise ValueError(f"train_lengths={lengths}: must be at most seq_len={self.seq_len}")
        keys = ("seq_len", "num_kv_pairs") if lengths is None else ("train_lengths", "train_pairs")
        for length, number in self.train_sizes():
            self._check_size(keys[0], length, keys[1], number)
        self._check_size(
            "seq_len" if self.val_seq_len is None else "val_seq_len",
            self.val_size()[0],
            "num_kv_pairs" if self.val_num_kv_pairs is None else "val_num_kv_pairs",
            self.val_size()[1],
        )

    def _check_size(self, length_key: str, length: int, pairs_key: str, pairs: int) -> None:
        most = min(self.vocab_size // 2 - 1, length // 4)
        if length % 2 or length < 4:
            raise ValueError(f"{length_key}={length}: must be an even number, at least 4")
        if not 1 <= pairs <= most:
            raise ValueError(
                f"{pairs_key}={pairs}: must lie in [1, {most}]: 4 × pairs ≤ {length_key}={length}, "
                f"and distinct keys below vocab_size/2={self.vocab_size // 2}"
            )

    def train_sizes(self) -> list[tuple[int, int]]:
        """(tokens, pairs) of each kind of training sequence."""
        assert self.num_kv_pairs is not None  # filled in above
        if self.train_lengths is None or self.train_pairs is None:
            return [(self.seq_len, self.num_kv_pairs)]
        return list(zip(self.train_lengths, self.train_pairs, strict=True))

    def val_size(self) -> tuple[int, int]:
        """(tokens, pairs) of a validation sequence."""
        assert self.num_kv_pairs is not None
        return self.val_seq_len or self.seq_len, self.val_num_kv_pairs or self.num_kv_pairs

    def check(self, config: Any) -> None:
        """Refuse a global batch that devices × accumulation do not divide, and too small a model vocabulary."""
        parts = config.trainer.devices * config.trainer.accumulate
        divides("data.batch_size", self.batch_size, "trainer.devices × trainer.accumulate", parts)
        vocabulary = config.model.vocab_size
        if vocabulary is not None and vocabulary < self.vocab_size:
            raise ValueError(
                f"model.vocab_size={vocabulary}: must be at least data.vocab_size={self.vocab_size}, or null"
            )


class MQAR(Source):
    """Recall sequences made on the spot; a token's text form is its number."""

    settings: MQARSettings

    def __init__(self, settings: MQARSettings, seed: int) -> None:
        super().__init__(settings, seed)
        self.vocab_size = settings.vocab_size

    def train_batch(self, step: int, first: int, count: int) -> Batch:
        s = self.settings
        sizes = s.train_sizes()
        draws = max(_draws(length, pairs) for length, pairs in sizes)
        u = uniform(self.seed, TRAIN, step, first, count, draws)
        if sizes == [(s.seq_len, s.num_kv_pairs)]:
            return to_batch(*self._sequences(u, *sizes[0]))
        kind = self._kinds(step, first, count)
        tokens = np.zeros((count, s.seq_len), dtype=np.int64)
        targets = np.full((count, s.seq_len), NO_TARGET, dtype=np.int64)
        for i, (length, pairs) in enumerate(sizes):
            rows = kind == i
            tokens[rows, :length], targets[rows, :length] = self._sequences(u[rows], length, pairs)
        lengths = np.array([length for length, _ in sizes])[kind]
        return to_batch(tokens, targets, np.arange(s.seq_len) < lengths[:, None])

    def targets_in_step(self, step: int) -> int:
        pairs = np.array([number for _, number in self.settings.train_sizes()])
        return int(pairs[self._kinds(step, 0, self.settings.batch_size)].sum())

    def tokens_in_step(self, step: int) -> int:
        lengths = np.array([length for length, _ in self.settings.train_sizes()])
        return int(lengths[self._kinds(step, 0, self.settings.batch_size)].sum())

    def val_batch(self, index: int, first: int, count: int) -> Batch:
        s = self.settings
        length, pairs = s.val_size()
        start = index * s.batch_size + first
        # One step, rows in a line: the set does not depend on how it is cut into batches.
        u = uniform(0, VALIDATION, 0, start, count, _draws(length, pairs))
        tokens, targets = self._sequences(u, length, pairs)
        targets[start + np.arange(count) >= s.val_examples] = NO_TARGET
        return to_batch(tokens, targets)

    def val_batches_available(self) -> int:
        return -(-self.settings.val_examples // self.settings.batch_size)

    def encode(self, text: str) -> list[int]:
        try:
            ids = [int(word) for word in text.split()]
        except ValueError as error:
            raise UserError(f"prompt={text}: data=mqar takes token numbers with spaces between") from error
        for i in ids:
            if not 0 <= i < self.vocab_size:
                raise UserError(f"prompt: token {i} must lie in [0, {self.vocab_size - 1}]")
        return ids

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))

    def _kinds(self, step: int, first: int, count: int) -> np.ndarray:
        """Which of the training sizes each sequence has, int64 [B]."""
        u = uniform(self.seed, SIZES, step, first, count, 1)[:, 0]
        return (u * len(self.settings.train_sizes())).astype(np.int64)

    def _sequences(self, u: np.ndarray, length: int, pairs: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and targets, int64 [B,T], out of uniform numbers float64 [B, ≥ _draws]."""
        count, half, context = len(u), self.settings.vocab_size // 2, 2 * pairs
        slots = (length - context) // 2
        u_key, u_key_order, u_value, u_value_order, u_slot, u_fill = np.split(
            u, np.cumsum([pairs, pairs, pairs, pairs, slots]), axis=1
        )
        keys_BN = 1 + _distinct(u_key, u_key_order, half - 1)
        values_BN = half + _distinct(u_value, u_value_order, half)
        # An exponential race: slot s arrives after a time of rate p_s, and the first N arrivals are
        # a weighted draw without replacement, in the order of drawing.
        rate_S = np.arange(1, slots + 1, dtype=np.float64) ** (self.settings.power_a - 1)
        order_BS = np.argsort(-np.log1p(-u_slot) / rate_S, axis=1, kind="stable")
        query_BN = context + 2 * order_BS[:, :pairs]

        if self.settings.random_fill:
            tokens = (u_fill[:, :length] * self.settings.vocab_size).astype(np.int64)
        else:
            tokens = np.zeros((count, length), dtype=np.int64)
        tokens[:, 0:context:2], tokens[:, 1:context:2] = keys_BN, values_BN
        targets = np.full((count, length), NO_TARGET, dtype=np.int64)
        np.put_along_axis(tokens, query_BN, keys_BN, axis=1)
        np.put_along_axis(targets, query_BN, values_BN, axis=1)
        return tokens, targets


def _draws(length: int, pairs: int) -> int:
    """Uniform numbers that a sequence takes: keys, values, slots, fill."""
    return 4 * pairs + (length - 2 * pairs) // 2 + length


def _distinct(u: np.ndarray, u_order: np.ndarray, total: int) -> np.ndarray:
    """Distinct numbers below `total` in random order, int64 [B,N], by Floyd's algorithm: N draws,
    however large `total` is; each row out of its own uniform numbers [B,N] alone."""
    count, number = u.shape
    chosen = np.empty((count, number), dtype=np.int64)
    for i in range(number):
        last = total - number + i
        pick = (u[:, i] * (last + 1)).astype(np.int64)
        taken = (chosen[:, :i] == pick[:, None]).any(axis=1)
        chosen[:, i] = np.where(taken, last, pick)
    return np.take_along_axis(chosen, np.argsort(u_order, axis=1, kind="stable"), axis=1)
