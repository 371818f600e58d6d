"""The statistics: means with t-intervals over seeds, paired and unpaired differences, effects in a factorial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student_t

LEVEL = 0.95


class Estimate(NamedTuple):
    """A mean of n values and the half-width of its 95 % interval (None: n = 1 gives none)."""

    mean: float
    half: float | None
    n: int

    @property
    def sure(self) -> bool:
        """Return whether the interval excludes zero."""
        return self.half is not None and abs(self.mean) > self.half

    @property
    def low(self) -> float:
        """Return the lower end."""
        return self.mean - (self.half or 0.0)

    @property
    def high(self) -> float:
        """Return the upper end."""
        return self.mean + (self.half or 0.0)


def quantile(freedom: float) -> float:
    """Return Student's t for a two-sided 95 % interval: 12.706 for 1 degree of freedom, 4.303 for 2."""
    return float(student_t.ppf(0.5 + LEVEL / 2, freedom))


def mean(values: Sequence[float]) -> Estimate:
    """Return the mean of finite values ± t·s/√n."""
    kept = np.asarray([v for v in values if math.isfinite(v)], dtype=np.float64)
    n = len(kept)
    if n == 0:
        return Estimate(math.nan, None, 0)
    if n == 1:
        return Estimate(float(kept[0]), None, 1)
    return Estimate(float(kept.mean()), quantile(n - 1) * float(kept.std(ddof=1)) / math.sqrt(n), n)


def welch(a: Sequence[float], b: Sequence[float]) -> Estimate:
    """Return mean(a) − mean(b) of independent samples; n is the smaller of the two sizes."""
    one, other = (np.asarray([v for v in x if math.isfinite(v)], dtype=np.float64) for x in (a, b))
    n = min(len(one), len(other))
    if n == 0:
        return Estimate(math.nan, None, 0)
    difference = float(one.mean() - other.mean())
    if n == 1:
        return Estimate(difference, None, 1)
    parts = [x.var(ddof=1) / len(x) for x in (one, other)]
    variance = float(sum(parts))
    if variance == 0:
        return Estimate(difference, 0.0, n)
    freedom = variance**2 / sum(p**2 / (len(x) - 1) for p, x in zip(parts, (one, other), strict=True))
    return Estimate(difference, quantile(freedom) * math.sqrt(variance), n)


class Pooled(NamedTuple):
    """Cells × seeds without gaps, and the scatter that neither cell nor seed explains."""

    values_CS: np.ndarray
    freedom: int
    variance: float

    @classmethod
    def of(cls, values_CS: np.ndarray) -> Pooled:
        """Return the two-way fit y = cell + seed + rest; the rest's variance over (C−1)(S−1) degrees."""
        cells, seeds = values_CS.shape
        rest = values_CS - values_CS.mean(1, keepdims=True) - values_CS.mean(0, keepdims=True) + values_CS.mean()
        freedom = (cells - 1) * (seeds - 1)
        return cls(values_CS, freedom, float((rest**2).sum() / freedom) if freedom else math.nan)

    def contrast(self, weights_C: np.ndarray) -> Estimate:
        """Return Σ w·(cell mean) with its interval."""
        seeds = self.values_CS.shape[1]
        value = float(weights_C @ self.values_CS.mean(1))
        if not self.freedom:
            return Estimate(value, None, seeds)
        error = math.sqrt(self.variance * float((weights_C**2).sum()) / seeds)
        return Estimate(value, quantile(self.freedom) * error, seeds)
