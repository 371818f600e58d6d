"""Full factorials: what each switch does on average, alone and together with the others.

With x = ±1 for each of k binary switches, y the cell means, J a set of switches and M the number of cells that
the other factors make: effect(J) = Σ Π_{j∈J} x_j · y / (2^{k−|J|} · M). For one switch that is mean(on) −
mean(off); for two it is how much the effect of one changes when the other is switched on.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from k3lab.report.analysis import Analysis
from k3lab.report.arms import Arm, Factor
from k3lab.report.stats import Estimate, Pooled


@dataclass(frozen=True)
class Switch:
    """A factor with two levels; ``off`` is the baseline's."""

    key: str
    off: str
    on: str


@dataclass(frozen=True)
class Factorial:
    """The design: every combination of every factor's levels has an arm."""

    switches: tuple[Switch, ...]
    others: tuple[Factor, ...]  # factors with more than two levels, averaged over
    cells: tuple[Arm, ...]

    def signs(self, switch: Switch) -> np.ndarray:
        """Return ±1 for each cell."""
        return np.array([1.0 if arm.config.get(switch.key, "—") == switch.on else -1.0 for arm in self.cells])

    def weights(self, subset: tuple[Switch, ...]) -> np.ndarray:
        """Return the weight of each cell's mean in the effect of a set of switches."""
        product = np.prod([self.signs(s) for s in subset], axis=0)
        return product / (len(self.cells) / 2 ** len(subset))

    def subsets(self) -> list[tuple[Switch, ...]]:
        """Return every set of one or more switches, small ones first."""
        sizes = range(1, len(self.switches) + 1)
        return [s for size in sizes for s in itertools.combinations(self.switches, size)]

    def cell(self, on: tuple[Switch, ...]) -> Arm | None:
        """Return the arm with exactly these switches on; None if other factors make it several."""
        if self.others:
            return None
        for arm in self.cells:
            if all((arm.config.get(s.key, "—") == s.on) == (s in on) for s in self.switches):
                return arm
        return None


@dataclass(frozen=True)
class Effects:
    """The effects on one metric."""

    metric: str
    seeds: tuple[str, ...]  # those that every cell has
    freedom: int
    by_subset: dict[tuple[Switch, ...], Estimate]
    surplus: Estimate | None  # all on − none − Σ (one on − none): what the sum of the parts does not explain


def missing(analysis: Analysis) -> list[str]:
    """Return the combinations of factor levels without a usable arm, if no more than a quarter lack one."""
    factors = analysis.stratum.factors
    total = math.prod(len(f.levels) for f in factors)
    if len(factors) < 2 or total > 4096:
        return []
    have = {tuple(arm.config.get(f.key, "—") for f in factors) for arm in analysis.arms}
    if len(have) == total or 4 * (total - len(have)) > total:
        return []
    lost = [c for c in itertools.product(*(f.levels for f in factors)) if c not in have]
    return [" ".join(f"{f.key}={v}" for f, v in zip(factors, c, strict=True) if v != "—") for c in lost]


def design(analysis: Analysis) -> Factorial | None:
    """Return the factorial that the arms form, None if they form none with two or more switches."""
    factors, base = analysis.stratum.factors, analysis.baseline
    binary = [f for f in factors if len(f.levels) == 2]
    if base is None or len(binary) < 2 or len(analysis.arms) != math.prod(len(f.levels) for f in factors):
        return None
    switches = []
    for factor in binary:
        off = base.config.get(factor.key, "—")
        switches.append(Switch(factor.key, off, next(v for v in factor.levels if v != off)))
    others = tuple(f for f in factors if len(f.levels) > 2)
    return Factorial(tuple(switches), others, tuple(analysis.arms))


def effects(analysis: Analysis, factorial: Factorial, metric: str) -> Effects | None:
    """Return all effects on a metric over the seeds that every cell has, None if there is no such seed."""
    values = [analysis.values(arm, metric) for arm in factorial.cells]
    finite = [{seed for seed, v in cell.items() if math.isfinite(v)} for cell in values]
    shared = tuple(sorted(set.intersection(*finite), key=lambda s: (len(s), s)))
    if not shared:
        return None
    pooled = Pooled.of(np.array([[cell[seed] for seed in shared] for cell in values]))
    by_subset = {s: pooled.contrast(factorial.weights(s)) for s in factorial.subsets()}
    surplus = None
    if not factorial.others:
        on = [sum(arm.config.get(s.key, "—") == s.on for s in factorial.switches) for arm in factorial.cells]
        k = len(factorial.switches)
        weights = np.array([float(k - 1) if n == 0 else -1.0 if n == 1 else 0.0 for n in on])
        weights[on.index(k)] += 1.0
        surplus = pooled.contrast(weights)
    return Effects(metric, shared, pooled.freedom, by_subset, surplus)
