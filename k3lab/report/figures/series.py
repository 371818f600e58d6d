"""Metrics over steps, put together over the seeds of an arm."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from k3lab.report import stats
from k3lab.report.analysis import Analysis
from k3lab.report.arms import Arm
from k3lab.report.metrics import metric
from k3lab.report.record import Run

POINTS = 600  # more than a figure can show


class Band(NamedTuple):
    """Mean over seeds and the range around it, in the unit shown."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n: int


def table(runs: list[Run], name: str, until: int, window: int = 1) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the steps that all runs with the metric share, and its values [S,N], as running means of ``window``."""
    found = [run.series[name] for run in runs if name in run.series]
    if not found:
        return None
    steps = found[0].steps
    for series in found[1:]:
        steps = np.intersect1d(steps, series.steps, assume_unique=True)
    steps = steps[steps <= until]
    if not len(steps):
        return None
    rows = []
    for series in found:
        values = series.values[np.searchsorted(series.steps, steps)]
        rows.append(_running_mean(values, window) if window > 1 else values)
    keep = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), POINTS)).round().astype(int))
    return steps[keep], np.stack(rows)[:, keep] * metric(name).scale


def spread(analysis: Analysis, arm: Arm, name: str, window: int = 1) -> Band | None:
    """Return an arm's mean with its smallest and largest seed."""
    found = table(analysis.usable[arm.name], name, analysis.step, window)
    if found is None:
        return None
    steps, values_SN = found
    return Band(steps, values_SN.mean(0), values_SN.min(0), values_SN.max(0), len(values_SN))


def gap(analysis: Analysis, arm: Arm, name: str) -> Band | None:
    """Return arm − baseline over steps, paired by seed, with its 95 % interval; None without a pair."""
    base = analysis.baseline
    if base is None:
        return None
    theirs = {run.seed: run for run in analysis.usable[base.name]}
    pairs = [(run, theirs[run.seed]) for run in analysis.usable[arm.name] if run.seed in theirs]
    found = table([run for pair in pairs for run in pair], name, analysis.step)
    if found is None or len(found[1]) != 2 * len(pairs):
        return None
    steps, values = found
    difference_SN = values[0::2] - values[1::2]
    n = len(difference_SN)
    mean_N = difference_SN.mean(0)
    half_N = stats.quantile(n - 1) * difference_SN.std(0, ddof=1) / np.sqrt(n) if n > 1 else np.zeros_like(mean_N)
    return Band(steps, mean_N, mean_N - half_N, mean_N + half_N, n)


def _running_mean(values_N: np.ndarray, window: int) -> np.ndarray:
    """Return the mean of up to ``window`` values that end at each one."""
    total = np.concatenate([[0.0], np.cumsum(values_N)])
    last = np.arange(1, len(values_N) + 1)
    first = np.maximum(last - window, 0)
    return (total[last] - total[first]) / (last - first)
