"""What a schedule is: the factor on the peak learning rate, a pure function of the step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Schedule(ABC):
    """`settings` has `warmup`, the share of all steps in which the rate rises to its peak."""

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def factor(self, step: int, max_steps: int) -> float:
        """Factor on the peak rate for the update after `step` updates (0-based), of `max_steps`.

        The first update already moves, update number `warmup × max_steps` has the full rate, the
        last one exactly the final rate, which also holds past the end.
        """
        step, warmup = min(step, max_steps - 1), self.warmup_steps(max_steps)
        return (step + 1) / warmup if step < warmup else self.after_warmup(step, warmup, max_steps)

    def warmup_steps(self, max_steps: int) -> int:
        """Updates of the warm-up, rounded to the nearest."""
        return int(self.settings.warmup * max_steps + 0.5)

    @abstractmethod
    def after_warmup(self, step: int, warmup: int, max_steps: int) -> float:
        """The factor for warmup ≤ step < max_steps."""
