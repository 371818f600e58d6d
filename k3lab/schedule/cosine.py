"""schedule=cosine: warm-up, then half a cosine down to the final rate (Loshchilov & Hutter, arXiv 1608.03983)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from k3lab.config.checks import in_range
from k3lab.schedule.base import Schedule


@dataclass(frozen=True)
class CosineSettings:
    """Shares of the run and of the peak rate."""

    name: str = "cosine"
    warmup: float = 0.01  # share of all steps
    final: float = 0.1  # last rate as a share of the peak

    def __post_init__(self) -> None:
        in_range("warmup", self.warmup, 0, 1)
        in_range("final", self.final, 0, 1)


class Cosine(Schedule):
    """Falls slowly, fast, slowly."""

    settings: CosineSettings

    def after_warmup(self, step: int, warmup: int, max_steps: int) -> float:
        way = (step - warmup) / max(1, max_steps - 1 - warmup)
        final = self.settings.final
        return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * way))
