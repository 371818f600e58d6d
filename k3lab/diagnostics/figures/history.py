"""A run's metrics as arrays: one line over steps, or one row a layer.

L layers or sublayers, N steps, M mixes, S sources.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from k3lab.tracking import names
from k3lab.tracking.local import read_metrics

POINTS = 400  # steps, more than a figure can show


class Line(NamedTuple):
    """A metric over steps."""

    steps_N: np.ndarray
    values_N: np.ndarray


class Table(NamedTuple):
    """A metric by layer over steps; NaN where it was not measured."""

    layers_L: np.ndarray
    steps_N: np.ndarray
    values_LN: np.ndarray


class History:
    """The metrics of one run, as ``{name: {step: value}}``."""

    def __init__(self, metrics: dict[str, dict[int, float]]) -> None:
        self.metrics = metrics

    @classmethod
    def read(cls, folder: Path) -> History:
        """Read a run folder's metrics.jsonl."""
        return cls(read_metrics(folder))

    def line(self, name: str, first: int = 0) -> Line | None:
        """A metric from step ``first`` on, thinned to what a figure can show; None without a value."""
        series = {s: v for s, v in self.metrics.get(name, {}).items() if s >= first}
        if not series:
            return None
        steps = _thin(sorted(series))
        return Line(np.array(steps), np.array([series[s] for s in steps]))

    def layers(self, name: str, first: int = 0) -> Table | None:
        """A metric of every layer that has it, or for ``depth/`` of every sublayer; None without a value."""
        depth = name.startswith("depth/")
        label = names.depth(name, 0) if depth else names.layer(name, 0)
        pattern = re.compile(re.escape(label).replace("layer_00", r"layer_(\d+)"))
        rows = {int(m.group(1)): self.metrics[n] for n in self.metrics if (m := pattern.fullmatch(n))}
        seen = {s for series in rows.values() for s in series if s >= first}
        if not seen:
            return None
        layers, steps = sorted(rows), _thin(sorted(seen))
        values = np.array([[rows[i].get(s, math.nan) for s in steps] for i in layers])
        return Table(np.array(layers), np.array(steps), values)

    def first_step(self, name: str) -> int:
        """1 if there are values past step 0, which a probe's few tokens give: they are another thing; else 0."""
        return int(any(step > 0 for step in self.metrics.get(name, {})))

    def sources(self) -> tuple[list[str], np.ndarray] | None:
        """The last mean weights of each mix over sources: labels of the M readers, and [M,S]; None without any."""
        pattern = re.compile(rf"{names.DEPTH_SOURCE_WEIGHT}/(?:layer_(\d+)|{names.OUTPUT})/source_(\d+)")
        values: dict[tuple[float, int], float] = {}
        for name, series in self.metrics.items():
            if m := pattern.fullmatch(name):
                reader = math.inf if m.group(1) is None else float(m.group(1))
                values[reader, int(m.group(2))] = series[max(series)]
        if not values:
            return None
        readers = sorted({reader for reader, _ in values})
        weight_MS = np.full((len(readers), max(s for _, s in values) + 1), np.nan)
        for (reader, source), value in values.items():
            weight_MS[readers.index(reader), source] = value
        return ["output" if r == math.inf else str(int(r)) for r in readers], weight_MS


def _thin(steps: list[int]) -> list[int]:
    if len(steps) <= POINTS:
        return steps
    return [steps[i] for i in np.linspace(0, len(steps) - 1, POINTS).round().astype(int)]
