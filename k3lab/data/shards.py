"""data=shards: token ids prepared beforehand by `k3lab data prepare`, read from disk where they are asked for.

The folder's format is described in k3lab/data/tokenfolder.py.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3lab.config.checks import divides, positive
from k3lab.config.errors import UserError
from k3lab.data.tokenfolder import TokenFolder, open_folder
from k3lab.data.tokensource import TokenSource

MISSING = "path=null: must be a folder made by `k3lab data prepare`"


@dataclass(frozen=True)
class ShardsSettings:
    """Which tokens, and how they are cut into sequences."""

    name: str = "shards"
    path: str | None = None  # a folder made by `k3lab data prepare`
    packing: bool = False  # sequences of whole documents; false: windows that begin and end anywhere
    verify: bool = False  # compare the checksum of every file before the first step
    seq_len: int = 256  # tokens a sequence
    batch_size: int = 16  # sequences an optimizer step, over all devices and micro-batches

    def __post_init__(self) -> None:
        if self.path is not None:
            # Absolute, so that a saved configuration means the same folder from anywhere.
            object.__setattr__(self, "path", os.path.abspath(os.path.expanduser(self.path)))
        positive("seq_len", self.seq_len)
        positive("batch_size", self.batch_size)

    @property
    def vocab_size(self) -> int | None:
        """Token ids of the folder; None while it cannot be read, which `Shards.prepare` explains."""
        try:
            with open(os.path.join(self.path or "", "header.json"), encoding="utf-8") as header:
                return int(json.load(header)["vocab_size"])
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def check(self, config: Any) -> None:
        """Refuse a missing path, an uneven global batch, and too small a model vocabulary."""
        if self.path is None:
            raise ValueError(f"data.{MISSING}")
        parts = config.trainer.devices * config.trainer.accumulate
        divides("data.batch_size", self.batch_size, "trainer.devices × trainer.accumulate", parts)
        vocabulary, own = config.model.vocab_size, self.vocab_size
        if vocabulary is not None and own is not None and vocabulary < own:
            raise ValueError(f"model.vocab_size={vocabulary}: must be at least {own}, the token ids of {self.path}")


class Shards(TokenSource):
    """Tokens of a folder."""

    settings: ShardsSettings

    def obtain(self) -> TokenFolder:
        if self.settings.path is None:
            raise UserError(f"data.{MISSING}")
        return open_folder(Path(self.settings.path), self.settings.verify)
