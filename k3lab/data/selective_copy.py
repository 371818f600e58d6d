"""data=selective_copy: tokens among noise, to be repeated in order at the end (MAD, arXiv 2403.17844).

A sequence of length T shows n content tokens at random places among noise, then n markers; the target at the
i-th marker is the i-th content token. Tokens: 0 the marker, then the noise, then the content.

Shapes: B sequences, T tokens, C places before the markers, R uniform numbers of a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from k3lab.config.checks import divides, positive
from k3lab.data.synthetic import Synthetic, below, no_targets

MARKER = 0


@dataclass(frozen=True)
class SelectiveCopySettings:
    """Sizes of the task."""

    name: str = "selective_copy"
    seq_len: int = 64  # tokens a training sequence, the markers among them
    batch_size: int = 32  # sequences an optimizer step, over all devices and micro-batches
    vocab_size: int = 16  # the marker, the noise and the content tokens
    noise_tokens: int = 1  # distinct noise tokens
    copies: int = 8  # content tokens a sequence, and markers
    val_seq_len: int | None = None  # tokens a validation sequence; null: as in training
    val_examples: int = 1024  # sequences of the validation set

    def __post_init__(self) -> None:
        for key in ("seq_len", "batch_size", "vocab_size", "noise_tokens", "copies", "val_seq_len", "val_examples"):
            positive(key, getattr(self, key))
        if self.vocab_size < self.noise_tokens + 3:
            least = self.noise_tokens + 3
            raise ValueError(f"vocab_size={self.vocab_size}: must be at least noise_tokens + 3 = {least}")
        for key in ("seq_len", "val_seq_len"):
            length = getattr(self, key)
            if length is not None and length < 2 * self.copies:
                raise ValueError(f"{key}={length}: must be at least 2 × copies = {2 * self.copies}")

    def check(self, config: Any) -> None:
        """Refuse a global batch that devices × accumulation do not divide, and too small a model vocabulary."""
        parts = config.trainer.devices * config.trainer.accumulate
        divides("data.batch_size", self.batch_size, "trainer.devices × trainer.accumulate", parts)
        vocabulary = config.model.vocab_size
        if vocabulary is not None and vocabulary < self.vocab_size:
            raise ValueError(f"model.vocab_size={vocabulary}: must be at least {self.vocab_size}, or null")


class SelectiveCopy(Synthetic):
    """Keeping what matters and passing over what does not."""

    settings: SelectiveCopySettings

    def fill_draws(self, length: int) -> int:
        return 2 * (length - self.settings.copies) + self.settings.copies

    def answers(self, plan_BR: np.ndarray, length: int) -> np.ndarray:
        return np.full(len(plan_BR), self.settings.copies)

    def make(self, plan_BR: np.ndarray, fill_BR: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        s, count = self.settings, len(fill_BR)
        places = length - s.copies
        u_place, u_noise, u_content = np.split(fill_BR, [places, 2 * places], axis=1)
        first_content = 1 + s.noise_tokens
        content = first_content + below(u_content, s.vocab_size - first_content)
        place = np.sort(np.argsort(u_place, axis=1, kind="stable")[:, : s.copies], axis=1)
        tokens = np.full((count, length), MARKER, dtype=np.int64)
        tokens[:, :places] = 1 + below(u_noise, s.noise_tokens)
        np.put_along_axis(tokens, place, content, axis=1)
        targets = no_targets(count, length)
        targets[:, places:] = content
        return tokens, targets
