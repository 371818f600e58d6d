"""One run as the report sees it, wherever it was read from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from k3lab.report.metrics import metric
from k3lab.tracking import names

SEEDS = ("seed", "data.seed")


class Series(NamedTuple):
    """The values of one metric, by rising optimizer step."""

    steps: np.ndarray  # [N] int64
    values: np.ndarray  # [N] float64

    @classmethod
    def of(cls, points: Mapping[int, float]) -> Series:
        """Return the series of step → value."""
        steps = np.array(sorted(points), dtype=np.int64)
        return cls(steps, np.array([points[int(s)] for s in steps], dtype=np.float64))


@dataclass
class Run:
    """A run: its configuration as flat text, its metrics, and what became of it."""

    id: str  # in the store; the folder's name without one
    label: str  # the folder's last two names
    status: str  # finished, failed, interrupted, running, waiting
    config: dict[str, str]  # decay.g_min -> "-5.0"; decay -> "lower_bound"
    summary: dict[str, Any] = field(default_factory=dict)
    load: Callable[[], dict[str, dict[int, float]]] = dict
    environment: dict[str, str] = field(default_factory=dict)
    command: str | None = None
    experiment: str = ""
    parent: str | None = None  # id or folder of its sweep
    folder: Path | None = None
    started: float = 0.0

    @cached_property
    def series(self) -> dict[str, Series]:
        """Return every metric's series; read on first use."""
        return {name: Series.of(points) for name, points in self.load().items() if points}

    @property
    def seed(self) -> str:
        """Return the run's seeds as one text."""
        found = [self.config[k] for k in SEEDS if self.config.get(k) not in (None, "null")]
        return "/".join(dict.fromkeys(found)) or "?"

    @cached_property
    def steps(self) -> int:
        """Return the optimizer steps done."""
        logged = [int(s.steps[-1]) for s in self.series.values()]
        return max([int(self.summary.get("steps") or 0), *logged])

    @property
    def max_steps(self) -> int | None:
        """Return the optimizer steps planned."""
        text = self.config.get("trainer.max_steps", "")
        return int(text) if text.isdigit() else None

    @property
    def tokens(self) -> int | None:
        """Return the tokens trained on."""
        try:
            return self.steps * int(self.config["data.batch_size"]) * int(self.config["data.seq_len"])
        except (KeyError, ValueError):
            return self.summary.get("tokens")

    @property
    def error(self) -> str:
        """Return why the run failed, as one line."""
        return " ".join(str(self.summary.get("error") or "").split())

    @property
    def data(self) -> str:
        """Return the fingerprint of the data, empty if the run did not record it."""
        return str(self.summary.get("data") or "")

    def fact(self, name: str) -> float | None:
        """Return a figure that the run noted of its model, such as flops_per_token."""
        found = self.summary.get(name)
        if found is None and isinstance(self.summary.get("audit"), dict):
            found = self.summary["audit"].get(name)
        return float(found) if isinstance(found, (int, float)) else None

    def value(self, name: str, until: int | None = None) -> float:
        """Return a metric's value at a step (None: at the end), NaN if it has none."""
        if name not in self.series:
            return float("nan")
        return metric(name).value(*self.series[name], self.steps if until is None else until)

    @property
    def trained(self) -> bool:
        """Return whether any step was logged."""
        return names.TRAIN_LOSS in self.series or names.VAL_LOSS in self.series
