"""data=text: bytes of files; by default the sources of Python's own standard library.

A token is a byte. Training windows start at random places of the training files laid end to end;
validation windows are fixed, do not overlap, and come from other files.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from k3lab.config.checks import divides, in_range, positive
from k3lab.data.base import NO_TARGET, Batch, Source, to_batch
from k3lab.data.corpus import Corpus, entropy_bits, read_corpus
from k3lab.data.counter import TRAIN, VALIDATION, uniform
from k3lab.data.files import find_files, library_files


@dataclass(frozen=True)
class TextSettings:
    """Which files, and how they are cut into sequences."""

    name: str = "text"
    path: Any = None  # a file, a folder, or a list of them; null: Python's standard library
    pattern: str = "*"  # which files of a folder, by name or by path inside it
    validation_fraction: float = 0.05  # share of the files held out, chosen by a hash of their content
    raw: bool = False  # take files that are no UTF-8 text
    seq_len: int = 256  # bytes a sequence
    batch_size: int = 16  # sequences an optimizer step, over all devices and micro-batches

    def __post_init__(self) -> None:
        if self.path is not None:
            paths = self.path if isinstance(self.path, list) else [self.path]
            if not paths or not all(isinstance(p, str) and p for p in paths):
                raise ValueError(
                    f"path={self.path}: must be null, a file, a folder or a list of them "
                    "(a name that reads as a number: ./2024)"
                )
            # Absolute, so that a saved configuration means the same files from any folder.
            full = [os.path.abspath(os.path.expanduser(p)) for p in paths]
            object.__setattr__(self, "path", full if isinstance(self.path, list) else full[0])
        if not self.pattern:
            raise ValueError("pattern=: must be a file name pattern such as *.txt")
        in_range("validation_fraction", self.validation_fraction, 0, 1, low_open=True, high_open=True)
        positive("seq_len", self.seq_len)
        positive("batch_size", self.batch_size)

    def check(self, config: Any) -> None:
        """Refuse a global batch that devices × accumulation do not divide, and a vocabulary below 256."""
        parts = config.trainer.devices * config.trainer.accumulate
        divides("data.batch_size", self.batch_size, "trainer.devices × trainer.accumulate", parts)
        vocabulary = config.model.vocab_size
        if vocabulary is not None and vocabulary < 256:
            raise ValueError(f"model.vocab_size={vocabulary}: data=text has 256 tokens; must be at least 256, or null")

    def require_inputs(self) -> None:
        """Raise UserError for paths that do not exist or hold no file, before anything slow is imported."""
        from k3lab.data.files import find_files  # here, since settings are read without the rest of this file

        if self.path is not None:
            find_files(self.path if isinstance(self.path, list) else [self.path], self.pattern)


class Text(Source):
    """Byte sequences of a corpus on disk; vocabulary 256."""

    vocab_size = 256
    bytes_per_token = 1.0
    settings: TextSettings

    def __init__(self, settings: TextSettings, seed: int) -> None:
        super().__init__(settings, seed)
        self._corpus: Corpus | None = None

    @property
    def corpus(self) -> Corpus:
        assert self._corpus is not None, "prepare() comes first"
        return self._corpus

    def prepare(self) -> None:
        if self._corpus is not None:
            return
        s = self.settings
        if s.path is None:
            files = library_files()
        else:
            files = find_files(s.path if isinstance(s.path, list) else [s.path], s.pattern)
        # Nobody chose the standard library's files one by one: a strange one there is left out.
        self._corpus = read_corpus(files, s.validation_fraction, s.seq_len + 1, s.raw, tolerant=s.path is None)
        self.notes.extend(self._corpus.notes)
        places = (len(self._corpus.validation) - 1) // s.seq_len
        # A run that looks at a few validation batches should see many files, not the first ones.
        self._windows = np.argsort(uniform(0, VALIDATION, 0, 0, 1, places)[0], kind="stable")

    def train_batch(self, step: int, first: int, count: int) -> Batch:
        train, seq_len = self.corpus.train, self.settings.seq_len
        places = len(train) - seq_len
        starts = (uniform(self.seed, TRAIN, step, first, count, 1)[:, 0] * places).astype(np.int64)
        return self._cut(train, starts)

    def targets_in_step(self, step: int) -> int:
        return self.settings.batch_size * self.settings.seq_len

    def val_batch(self, index: int, first: int, count: int) -> Batch:
        rows = index * self.settings.batch_size + first + np.arange(count)
        windows = self._windows[rows % len(self._windows)]
        batch = self._cut(self.corpus.validation, windows * self.settings.seq_len)
        batch["targets"][torch.from_numpy(rows >= len(self._windows))] = NO_TARGET
        return batch

    def val_batches_available(self) -> int:
        return -(-len(self._windows) // self.settings.batch_size)

    def unigram_entropy(self) -> float:
        """Bits a byte of the held-out files under their own byte frequencies."""
        return entropy_bits(self.corpus.validation)

    def constants(self) -> dict[str, float]:
        return {
            "data/unigram_bits_per_byte": self.unigram_entropy(),
            "data/train_bytes": float(len(self.corpus.train)),
            "data/validation_bytes": float(len(self.corpus.validation)),
        }

    def fingerprint(self) -> str:
        return self.corpus.fingerprint

    def encode(self, text: str) -> list[int]:
        # Surrogates stand for bytes of the command line that are no UTF-8.
        return list(text.encode("utf-8", "surrogateescape"))

    def decode(self, ids: list[int]) -> str:
        return b"".join(bytes([i]) if i < 256 else b"\xff" for i in ids).decode("utf-8", "replace")

    def _cut(self, data: np.ndarray, starts: np.ndarray) -> Batch:
        width = self.settings.seq_len + 1
        rows = np.empty((len(starts), width), dtype=np.uint8)
        for row, start in zip(rows, starts.tolist(), strict=True):
            row[:] = data[start : start + width]
        return to_batch(rows[:, :-1], rows[:, 1:])
