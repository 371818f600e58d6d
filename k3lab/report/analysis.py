"""What is compared: the runs that count, the step at which, means by arm, differences from a baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from k3lab.config.errors import UserError, nearest
from k3lab.report import stats
from k3lab.report.arms import Arm, Stratum, matching
from k3lab.report.metrics import KNOWN, LOWER, NEUTRAL, main_metric, metric
from k3lab.report.record import Run
from k3lab.report.stats import Estimate
from k3lab.tracking import names

# The options that this laboratory is about: an arm with fewer of them is the more usual baseline.
TECHNIQUES = {"decay": "lower_bound", "router": "quantile", "residual": "block_attnres"}
TABLE = (
    *(names.VAL_LOSS, names.VAL_BITS_PER_BYTE, names.VAL_ACCURACY, names.TRAIN_LOSS),
    *(names.BALANCE_MAX_VIO, names.PERF_TOKENS_PER_S),
)


@dataclass(frozen=True)
class Difference:
    """An arm minus the baseline in one metric, unscaled."""

    arm: Arm
    metric: str
    estimate: Estimate
    paired: bool
    seeds: tuple[str, ...]  # the pairs

    @property
    def judgement(self) -> str:
        """Return better, worse, higher, lower, none, identical or open (one seed, or no values)."""
        mean, half = self.estimate.mean, self.estimate.half
        if half is None or math.isnan(mean):
            return "open"
        if mean == 0 and half == 0:
            return "identical"
        if not self.estimate.sure:
            return "none"
        good = metric(self.metric).better
        if good == NEUTRAL:
            return "higher" if mean > 0 else "lower"
        return "better" if (mean < 0) == (good == LOWER) else "worse"


@dataclass
class Analysis:
    """One stratum, ready to be told."""

    stratum: Stratum
    main: str  # the metric that answers the question
    metrics: list[str]  # of the table
    step: int  # at which runs are compared
    baseline: Arm | None
    why: str  # how the baseline was chosen
    usable: dict[str, list[Run]]  # arm's name -> the runs that count
    unfinished: bool  # whether runs that did not finish count, as there are no others
    cut: bool  # whether longer runs are read at a step before their last
    differences: dict[str, list[Difference]] = field(default_factory=dict)  # metric -> one an arm

    def values(self, arm: Arm, name: str) -> dict[str, float]:
        """Return seed → value at the step of the comparison, unscaled."""
        return {run.seed: run.value(name, self.step) for run in self.usable[arm.name]}

    def estimate(self, arm: Arm, name: str) -> Estimate:
        """Return the arm's mean ± interval over seeds."""
        return stats.mean(list(self.values(arm, name).values()))

    def difference(self, arm: Arm, name: str, baseline: Arm | None = None) -> Difference:
        """Return arm − baseline: paired by seed, or of independent samples if no seed is in both."""
        base = baseline or self.baseline
        assert base is not None, "there is no baseline"
        ours, theirs = self.values(arm, name), self.values(base, name)
        pairs = [s for s in ours if s in theirs and math.isfinite(ours[s]) and math.isfinite(theirs[s])]
        if pairs or not (ours and theirs):
            estimate = stats.mean([ours[s] - theirs[s] for s in pairs])
        else:
            estimate = stats.welch(list(ours.values()), list(theirs.values()))
        return Difference(arm, name, estimate, bool(pairs), tuple(pairs))

    @property
    def arms(self) -> list[Arm]:
        """Return the arms that have a run that counts, in the order of the page."""
        return [arm for arm in self.stratum.arms if self.usable[arm.name]]

    @property
    def others(self) -> list[Arm]:
        """Return the arms that are compared with the baseline."""
        return [arm for arm in self.arms if arm is not self.baseline]

    @property
    def seeds(self) -> int:
        """Return the largest number of seeds of an arm."""
        return max((len(runs) for runs in self.usable.values()), default=0)

    def has(self, name: str) -> bool:
        """Return whether any run that counts has a metric."""
        return any(name in run.series for runs in self.usable.values() for run in runs)


def analyse(stratum: Stratum, baseline: str | None, wanted: str | None) -> Analysis:
    """Return the analysis of one stratum; ``wanted`` is the metric that answers the question."""
    finished = any(arm.with_status("finished") for arm in stratum.arms)
    states = ("finished",) if finished else ("finished", "interrupted", "running")
    usable = {arm.name: [r for r in arm.with_status(*states) if r.trained] for arm in stratum.arms}
    runs = [run for found in usable.values() for run in found]
    lengths = [run.steps for run in runs]
    step = min(lengths, default=0)
    if len(set(lengths)) > 1:
        step = _common_step(runs, step)
    present = {name for run in runs for name in run.series}
    if wanted is not None and wanted not in present:
        wanted = None  # another stratum has it
    main = wanted or main_metric(present & set(KNOWN)) or names.VAL_LOSS
    table = [n for n in TABLE if n in present]
    if main not in table:
        table.insert(0, main)
    table.remove(main)
    table.insert(0, main)
    base, why = choose_baseline(stratum, usable, baseline)
    cut = step < max(lengths, default=0)
    result = Analysis(stratum, main, table, step, base, why, usable, bool(runs) and not finished, cut)
    _sort(result)
    if base is not None:
        result.differences = {n: [result.difference(arm, n) for arm in result.others] for n in table}
    return result


def _common_step(runs: Sequence[Run], last: int) -> int:
    """Return the largest step ≤ ``last`` at which every run was validated, ``last`` itself if there is none."""
    validated = [set(run.series[names.VAL_LOSS].steps.tolist()) for run in runs if names.VAL_LOSS in run.series]
    shared = set.intersection(*validated) if validated else set()
    return max((s for s in shared if 0 < s <= last), default=last)


def choose_baseline(stratum: Stratum, usable: dict[str, list[Run]], wanted: str | None) -> tuple[Arm | None, str]:
    """Return the baseline among arms with usable runs, and why it is that one."""
    arms = [arm for arm in stratum.arms if usable[arm.name]]
    if len(arms) < 2:
        return None, ""
    if wanted is not None:
        found = matching(arms, wanted)
        if len(found) == 1:
            return found[0], "named on the command line"
        return (
            None,
            f"no arm here is called {wanted}" if not found else f"{wanted} fits {len(found)} arms here",
        )
    counts = [sum(arm.config.get(k) == v for k, v in TECHNIQUES.items()) for arm in arms]
    first = arms[counts.index(min(counts))]
    if min(counts) < max(counts):
        return first, "the arm with the fewest of the laboratory's own techniques"
    return first, "the arm that was started first"


def check_baseline(strata: Sequence[Stratum], wanted: str | None) -> None:
    """Raise UserError unless ``wanted`` names one arm in some stratum."""
    if wanted is None:
        return
    found = [matching(s.arms, wanted) for s in strata]
    if any(len(arms) == 1 for arms in found):
        return
    known = list(dict.fromkeys(arm.name for s in strata for arm in s.arms))
    if any(found):
        fits = next(arms for arms in found if arms)
        raise UserError(f"--baseline {wanted}: fits {len(fits)} arms: {'; '.join(a.name for a in fits[:6])}")
    shown = "; ".join(known[:8]) + ("; …" if len(known) > 8 else "")
    raise UserError(f"--baseline {wanted}: no such arm{nearest(wanted, known)}; arms: {shown}")


def check_metric(runs: Sequence[Run], wanted: str | None) -> None:
    """Raise UserError unless some run has the metric."""
    if wanted is None:
        return
    present = {name for run in runs for name in run.series}
    if wanted not in present:
        shown = ", ".join(n for n in KNOWN if n in present)
        raise UserError(f"--metric {wanted}: no run has it{nearest(wanted, sorted(present))}; there are {shown}")


def _sort(analysis: Analysis) -> None:
    """Put the baseline first and the others from best to worst; switches in the order of how many are on."""
    base = analysis.baseline
    factors = analysis.stratum.factors
    binary = len(factors) > 1 and all(len(f.levels) == 2 for f in factors)
    sign = -1.0 if metric(analysis.main).better > 0 else 1.0

    def rank(arm: Arm) -> tuple[bool, float, list[bool]]:
        value = sign * analysis.estimate(arm, analysis.main).mean
        if binary and base is not None:
            off = [arm.config.get(f.key) == base.config.get(f.key) for f in factors]
            return arm is not base, float(len(off) - sum(off)), off
        return arm is not base, math.inf if math.isnan(value) else value, []

    analysis.stratum.arms.sort(key=rank)
