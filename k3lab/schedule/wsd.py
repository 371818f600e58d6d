"""schedule=wsd: warm-up, a long constant stretch, then decay to the final rate (Hu et al., arXiv 2404.06395, §4.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from k3lab.config.checks import in_range, one_of
from k3lab.schedule.base import Schedule


@dataclass(frozen=True)
class WSDSettings:
    """Shares of the run and of the peak rate."""

    name: str = "wsd"
    warmup: float = 0.01  # share of all steps
    decay: float = 0.2  # share of all steps, at the end
    final: float = 0.0  # last rate as a share of the peak
    shape: str = "sqrt"  # of the decay: linear, or sqrt (1 − √way: fast at first)

    def __post_init__(self) -> None:
        for key in ("warmup", "decay", "final"):
            in_range(key, getattr(self, key), 0, 1)
        if self.warmup + self.decay > 1 + 1e-9:  # 0.1 + 0.9 may round up
            raise ValueError(f"decay={self.decay}: must be at most 1 − warmup = {1 - self.warmup:g}")
        one_of("shape", self.shape, ("linear", "sqrt"))


class WSD(Schedule):
    """Constant, then down: the constant part can be continued to any length."""

    settings: WSDSettings

    def after_warmup(self, step: int, warmup: int, max_steps: int) -> float:
        s = self.settings
        decay = min(int(s.decay * max_steps + 0.5), max_steps - warmup)
        into = step + 1 - (max_steps - decay)
        if into <= 0:
            return 1.0
        way = into / decay
        fallen = math.sqrt(way) if s.shape == "sqrt" else way
        return 1 - (1 - s.final) * fallen
