"""What a data source is: sequences addressed by (step, index), never by what was read before.

Shapes: B sequences of a micro-batch, T tokens of a sequence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from k3lab.config.errors import UserError

NO_TARGET = -100  # positions with this target carry no loss

Batch = dict[str, Tensor]  # tokens[B,T] int64, targets[B,T] int64; mask[B,T] bool where some tokens are
# padding, documents[B,T] int32 (numbered from 0 in each row) where rows hold several documents


class Source(ABC):
    """A training and a validation set that hand out any sequence on request.

    `settings` has at least `seq_len` and `batch_size` (sequences of one optimizer step over all
    devices). `prepare()` comes before the first batch and raises UserError for unusable data; it
    may fill `notes`, lines that the user should see once.
    """

    vocab_size: int
    bytes_per_token: float | None = None  # None: bits per byte has no meaning for this source

    def __init__(self, settings: Any, seed: int) -> None:
        self.settings = settings
        self.seed = seed
        self.notes: list[str] = []

    def prepare(self) -> None:  # noqa: B027 (a synthetic task has nothing to prepare)
        """Read and check what the source needs, once; later calls do nothing."""

    @abstractmethod
    def train_batch(self, step: int, first: int, count: int) -> Batch:
        """Sequences first..first+count-1 of optimizer step `step` (0-based)."""

    @abstractmethod
    def targets_in_step(self, step: int) -> int:
        """Loss tokens in the whole global batch of `step`."""

    def tokens_in_step(self, step: int) -> int:
        """Real tokens (not padding) in the whole global batch of `step`."""
        return self.settings.batch_size * self.settings.seq_len

    @abstractmethod
    def val_batch(self, index: int, first: int, count: int) -> Batch:
        """Sequences first..first+count-1 of validation batch `index`; the same for every seed.

        Past the end of the set the rows are filled up with sequences that carry no target.
        """

    @abstractmethod
    def val_batches_available(self) -> int | None:
        """Number of distinct validation batches; None: no end."""

    def constants(self) -> dict[str, float]:
        """Figures of the data that belong beside the results, by metric name."""
        return {}

    def fingerprint(self) -> str:
        """Changes when the data behind the settings change; "" when the settings say it all."""
        return ""

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`."""
        raise UserError(f"data={self.settings.name} has no text form: it cannot take a prompt")

    def decode(self, ids: list[int]) -> str:
        """Text of token ids."""
        raise UserError(f"data={self.settings.name} has no text form: it cannot show generated tokens")


def to_batch(tokens: np.ndarray, targets: np.ndarray, mask: np.ndarray | None = None) -> Batch:
    """Arrays [B,T] as the tensors of a batch (int64, bool), each with its own memory."""
    batch = {
        "tokens": torch.from_numpy(tokens.astype(np.int64)),
        "targets": torch.from_numpy(targets.astype(np.int64)),
    }
    if mask is not None:
        batch["mask"] = torch.from_numpy(mask.astype(np.bool_))
    return batch
