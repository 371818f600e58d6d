"""Decoding memory: rows a token, appended to a buffer that doubles when it is full.

B batch, T new tokens, L tokens seen, F features.
"""

from __future__ import annotations

import torch
from torch import Tensor


class TokenCache:
    """The rows [B,L,F…] of all tokens seen by one layer, kept in ``dtype``."""

    def __init__(self, batch: int, device: torch.device | str, dtype: torch.dtype) -> None:
        self.batch = batch
        self.device = torch.device(device)
        self.dtype = dtype
        self.length = 0
        self._rows: Tensor | None = None

    def append(self, x_BTF: Tensor) -> Tensor:
        """Add T tokens; return all L of them, [B,L,F…] in the dtype of ``x``."""
        if x_BTF.shape[0] != self.batch:
            raise ValueError(f"cache: made for a batch of {self.batch}, got one of {x_BTF.shape[0]}")
        end = self.length + x_BTF.shape[1]
        if self._rows is None or self._rows.shape[1] < end:
            self._grow(max(end, 2 * self.length), x_BTF.shape[2:])
        assert self._rows is not None
        self._rows[:, self.length : end] = x_BTF.detach()
        self.length = end
        return self._rows[:, :end].to(x_BTF.dtype)

    def _grow(self, capacity: int, features: torch.Size) -> None:
        rows = torch.empty(self.batch, capacity, *features, device=self.device, dtype=self.dtype)
        if self._rows is not None:
            rows[:, : self.length] = self._rows[:, : self.length]
        self._rows = rows
