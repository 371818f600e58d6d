"""No decay: g = 0, the state forgets only what the delta rule overwrites.

With it the mixer is DeltaNet (arXiv 2406.06484). B batch, T time, H heads, K key dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from k3lab.decay.base import Decay, at_least_fp32


@dataclass(frozen=True)
class NoneSettings:
    """No decay has no settings."""

    name: str = "none"


class NONE(Decay):
    """No logits, no parameters. g = 0 respects any bound; −5 is the one that the kernels' tiles are made for."""

    bound = -5.0
    channels = 0

    def log_decay(self, z_BTHC: Tensor) -> Tensor:
        """z [B,T,H,0] → g [B,T,H,K] = 0."""
        z_BTHC = at_least_fp32(z_BTHC)
        return z_BTHC.new_zeros(1).expand(*z_BTHC.shape[:-1], self.head_dim)

    def kernel_args(self, z_BTHC: Tensor) -> dict[str, Any]:
        """Finished g, marked as bounded."""
        return {
            "g": self.log_decay(z_BTHC),
            "use_gate_in_kernel": False,
            "safe_gate": True,
            "lower_bound": self.bound,
        }
