"""Batches out of a folder of tokens: windows of one long line, or rows of whole documents.

Shapes: B sequences, T tokens, R packed rows.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch

from k3lab.config.errors import UserError
from k3lab.data.base import NO_TARGET, Batch, Source, to_batch
from k3lab.data.counter import TRAIN, VALIDATION, uniform
from k3lab.data.packing import Packing, pack, packed_batch
from k3lab.data.tokenfolder import TokenArray, TokenFolder
from k3lab.data.tokenize import Tokenizer, load_tokenizer


class TokenSource(Source):
    """Base of sources whose settings have seq_len, batch_size and packing.

    Windows start at random places of the training tokens. Packed rows are dealt out epoch by epoch, each epoch
    in its own order.
    """

    def __init__(self, settings: Any, seed: int) -> None:
        super().__init__(settings, seed)
        self._folder: TokenFolder | None = None
        self._tokenizer: Tokenizer | None = None
        self._orders: dict[int, np.ndarray] = {}

    @abstractmethod
    def obtain(self) -> TokenFolder:
        """The folder, made first if need be; UserError says why it cannot be had."""

    @property
    def folder(self) -> TokenFolder:
        assert self._folder is not None, "prepare() comes first"
        return self._folder

    def prepare(self) -> None:
        if self._folder is not None:
            return
        folder, s = self.obtain(), self.settings
        self.train, self.validation = folder.side("train"), folder.side("validation")
        for name, side in (("training", self.train), ("validation", self.validation)):
            least = 2 if s.packing else s.seq_len + 1
            if len(side) < least:
                raise UserError(
                    f"data.seq_len={s.seq_len}: the {name} side of {folder.path} has {len(side)} tokens and must "
                    f"have at least {least}; give more text, another validation_fraction or a shorter seq_len"
                )
        header = folder.header
        self.vocab_size = header["vocab_size"]
        held = header["validation"]
        # In a packed row the first token of a document, the separator, is nobody's target.
        self.bytes_per_token = held["bytes"] / (held["tokens"] - (held["documents"] if s.packing else 0))
        places = (len(self.validation) - 1) // s.seq_len
        if s.packing:
            self._packed = self._pack(self.train), self._pack(self.validation)
            places = len(self._packed[1])
        # A run that looks at a few validation batches should see many documents, not the first ones.
        self._places = np.argsort(uniform(0, VALIDATION, 0, 0, 1, places)[0], kind="stable")
        self._folder = folder

    def train_batch(self, step: int, first: int, count: int) -> Batch:
        if self.settings.packing:
            return self._rows(self.train, self._packed[0], self._dealt(step, first, count))
        places = len(self.train) - self.settings.seq_len
        starts = (uniform(self.seed, TRAIN, step, first, count, 1)[:, 0] * places).astype(np.int64)
        return self._cut(self.train, starts)

    def targets_in_step(self, step: int) -> int:
        size = self.settings.batch_size
        if self.settings.packing:
            return int(self._packed[0].targets_R[self._dealt(step, 0, size)].sum())
        return size * self.settings.seq_len

    def tokens_in_step(self, step: int) -> int:
        size = self.settings.batch_size
        if self.settings.packing:
            return int(self._packed[0].tokens_R[self._dealt(step, 0, size)].sum())
        return size * self.settings.seq_len

    def val_batch(self, index: int, first: int, count: int) -> Batch:
        numbers = index * self.settings.batch_size + first + np.arange(count)
        places = self._places[numbers % len(self._places)]
        if self.settings.packing:
            batch = self._rows(self.validation, self._packed[1], places)
        else:
            batch = self._cut(self.validation, places * self.settings.seq_len)
        batch["targets"][torch.from_numpy(numbers >= len(self._places))] = NO_TARGET
        return batch

    def val_batches_available(self) -> int:
        return -(-len(self._places) // self.settings.batch_size)

    def constants(self) -> dict[str, float]:
        found = {
            f"data/{name}_{what}": float(self.folder.header[name][what])
            for name in ("train", "validation")
            for what in ("documents", "tokens", "bytes")
        }
        if self.settings.packing:
            packed = self._packed[0]
            found["data/packing_fill"] = float(packed.length_N.sum() / (len(packed) * self.settings.seq_len))
        return found

    def fingerprint(self) -> str:
        return self.folder.header["sha256"][:16]

    def encode(self, text: str) -> list[int]:
        return [self.tokenizer.separator, *self.tokenizer.encode([text])[0].tolist()]

    def decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids)

    @property
    def tokenizer(self) -> Tokenizer:
        """What the folder was made with; training does not need it."""
        if self._tokenizer is None:
            name = self.folder.header["tokenizer"]
            self._tokenizer = load_tokenizer(None if name == "bytes" else self.folder.path / name)
        return self._tokenizer

    def _pack(self, side: TokenArray) -> Packing:
        return pack(side.starts(), len(side), self.settings.seq_len)

    def _dealt(self, step: int, first: int, count: int) -> np.ndarray:
        """Packed rows of sequences first..first+count-1 of a step, int64 [B]."""
        number = step * self.settings.batch_size + first + np.arange(count)
        epoch, place = np.divmod(number, len(self._packed[0]))
        return np.array([self._order(e)[p] for e, p in zip(epoch.tolist(), place.tolist(), strict=True)])

    def _order(self, epoch: int) -> np.ndarray:
        """Order of the training rows in an epoch, int64 [R]; the newest few are kept."""
        if epoch not in self._orders:
            while len(self._orders) > 1:
                self._orders.pop(min(self._orders))
            draws = uniform(self.seed, TRAIN, epoch, 0, 1, len(self._packed[0]))[0]
            self._orders[epoch] = np.argsort(draws, kind="stable")
        return self._orders[epoch]

    def _rows(self, side: TokenArray, packing: Packing, rows: np.ndarray) -> Batch:
        return packed_batch(side, packing, rows, self.settings.seq_len, self.folder.header["separator"])

    def _cut(self, side: TokenArray, starts: np.ndarray) -> Batch:
        width = self.settings.seq_len + 1
        rows = np.empty((len(starts), width), dtype=np.int64)
        for row, start in zip(rows, starts.tolist(), strict=True):
            row[:] = side.read(start, start + width)
        return to_batch(rows[:, :-1], rows[:, 1:])
