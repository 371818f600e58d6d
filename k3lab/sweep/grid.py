"""The grid: every combination of the values given, the last dimension changing fastest."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

from k3lab.config import checks
from k3lab.config.errors import UserError
from k3lab.sweep.base import Metrics, Sweeper, Trial
from k3lab.sweep.space import Dimension, Space

MAX_JOBS = 10_000  # more is a slip of the keyboard


@dataclass(frozen=True)
class GridSettings:
    """How the combinations are repeated."""

    name: str = "grid"
    arms: list[str] | None = None  # overrides with several values, for keys that the command line does not give
    seeds: int | None = None  # repeat each combination with so many seeds, counted up from `seed`

    def __post_init__(self) -> None:
        checks.positive("seeds", self.seeds)


class Grid(Sweeper):
    """All combinations, known from the start."""

    def __init__(self, settings: Any, config: Any, space: Space) -> None:
        super().__init__(settings, config, space)
        dimensions = list(space.dimensions)
        for d in dimensions:
            if d.continuous:
                raise UserError(
                    f"{d.key}=interval(…): a grid needs single values, such as {d.key}={_examples(d)}; "
                    "sweep=optuna searches intervals"
                )
        fixed, seeds = space.repeated(settings.seeds, config.seed)
        if seeds:
            dimensions.append(Dimension("seed", seeds))
        jobs = math.prod(len(d.values) for d in dimensions)
        if jobs > MAX_JOBS:
            raise UserError(f"the sweep has {jobs} jobs: at most {MAX_JOBS} are started at a time")
        self._trials = [
            Trial(index, (*fixed, *point), " ".join(point) or "one job", _arm(point))
            for index, point in enumerate(itertools.product(*(d.values for d in dimensions)))
        ]
        self._next = 0

    def describe(self) -> str:
        return f"{len(self._trials)} jobs" if len(self._trials) > 1 else "1 job"

    def total(self) -> int:
        return len(self._trials)

    def known(self) -> list[Trial]:
        return list(self._trials)

    def ask(self) -> Trial | None:
        if self._next == len(self._trials):
            return None
        self._next += 1
        return self._trials[self._next - 1]

    def tell(self, trial: Trial, status: str, metrics: Metrics) -> None:
        """A grid learns nothing from its jobs."""


def _arm(point: tuple[str, ...]) -> str:
    return " ".join(text for text in point if text.split("=")[0].lstrip("+") != "seed")


def _examples(dimension: Dimension) -> str:
    assert dimension.scale is not None
    return f"{dimension.scale.low:g},{dimension.scale.high:g}"
