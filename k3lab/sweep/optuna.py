"""A search: the package optuna proposes points by what it was told of earlier ones, and ends hopeless ones early.

Its trials lie in optuna.db in the sweep's folder from the moment they are proposed, so a search that was killed
goes on where it was: trials that had ended count, those that ran go on from their checkpoints.
TPE: Bergstra et al., "Algorithms for Hyper-Parameter Optimization" (2011).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from k3lab.config import checks
from k3lab.config.errors import UserError, nearest
from k3lab.sweep.base import Metrics, Sweeper, Trial
from k3lab.sweep.space import Space
from k3lab.sweep.study import PRUNERS, SAMPLERS, SearchStudy, require_optuna, whole_keys

DIRECTIONS = ("auto", "minimize", "maximize")
HIGHER_IS_BETTER = ("accuracy", "entropy", "tokens_per_s", "mfu")  # the last part of a metric's name
STATES = {"complete": "complete", "pruned": "pruned", "fail": "failed", "running": "running"}  # optuna's: ours


@dataclass(frozen=True)
class OptunaSettings:
    """How to search."""

    name: str = "optuna"
    arms: list[str] | None = None  # dimensions for keys that the command line does not give
    trials: int = 20  # points tried, those that failed or were pruned included
    metric: str = "val/loss"  # its last value is a trial's result
    direction: str = "auto"
    sampler: str = "tpe"
    seed: int = 0  # of the sampler
    startup: int = 5  # trials that sampler and pruner wait for
    pruner: str = "median"
    warmup: int = 0  # optimizer steps before which nothing is pruned
    seeds: int | None = None  # repetitions of each trial, counted up from `seed`

    def __post_init__(self) -> None:
        checks.positive("trials", self.trials)
        checks.one_of("direction", self.direction, DIRECTIONS)
        checks.one_of("sampler", self.sampler, SAMPLERS)
        checks.one_of("pruner", self.pruner, PRUNERS)
        for key in ("seed", "startup", "warmup"):
            checks.non_negative(key, getattr(self, key))
        checks.positive("seeds", self.seeds)

    def check(self, config: Any) -> None:
        """Require a validation if its loss is what is searched by."""
        if self.metric.startswith("val/") and config.trainer.val_batches == 0:
            raise ValueError(f"sweep.metric={self.metric}: needs validations; trainer.val_batches=0 has none")

    def warnings(self, config: Any) -> list[str]:
        """Tell when nothing can be pruned."""
        every = config.trainer.val_every
        if self.pruner == "none" or (every is not None and every < config.trainer.max_steps):
            return []
        return [f"sweep.pruner={self.pruner}: trainer.val_every={every} has no validation to prune at before the end"]

    def resolved_direction(self) -> str:
        """Return ``minimize`` or ``maximize``."""
        if self.direction != "auto":
            return self.direction
        return "maximize" if self.metric.split("/")[-1] in HIGHER_IS_BETTER else "minimize"


@dataclass
class _Open:
    """A trial that has begun and was not told."""

    trial: Any  # optuna's
    waiting: list[int]  # seeds that have not started
    values: dict[int, float] = field(default_factory=dict)  # seed -> result
    seen: set[int] = field(default_factory=set)  # steps that the pruner was asked about
    leave: str | None = None  # why it should end early


class Optuna(Sweeper):
    """Trials proposed one after another, each a job, or one job a seed: job i is seed i % S of trial i // S."""

    def __init__(self, settings: Any, config: Any, space: Space) -> None:
        super().__init__(settings, config, space)
        require_optuna()
        dimensions = space.dimensions
        if not dimensions:
            raise UserError(
                "sweep=optuna has nothing to search: add a key such as optim.lr=tag(log,interval(1e-4,1e-2))"
            )
        if any(d.key == "seed" for d in dimensions):
            raise UserError("seed: a search would take the luckiest one; sweep.seeds=3 repeats each trial instead")
        if not any(d.continuous for d in dimensions):
            points = math.prod(len(d.values) for d in dimensions)
            if points < settings.trials:
                raise UserError(f"sweep.trials={settings.trials}: there are {points} points; sweep=grid runs each once")
        self.metric = settings.metric
        self.direction = settings.resolved_direction()
        self._whole = whole_keys(dimensions, config)
        self._fixed, seeds = space.repeated(settings.seeds, config.seed)
        self._seeds = seeds or ("",)
        self._study: SearchStudy | None = None
        self._open: dict[int, _Open] = {}
        self._ended: dict[int, str] = {}  # trial -> why its other seeds should end as well

    @property
    def identity(self) -> str:
        """A hash of what a search is: its space and its goal, but not how it searches or how long."""
        goal = (self.metric, self.direction, self._seeds)
        text = repr((self.config.fingerprint(), self.space.dimensions, goal))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def study(self) -> SearchStudy:
        assert self._study is not None, "begin() comes first"
        return self._study

    def describe(self) -> str:
        each = f" of {len(self._seeds)} seeds" if len(self._seeds) > 1 else ""
        return f"{self.settings.trials} trials{each}, {self.direction} {self.metric}"

    def total(self) -> int:
        return int(self.settings.trials) * len(self._seeds)

    def continues(self, summary: Mapping[str, Any], fingerprints: Sequence[str]) -> bool:
        search = summary.get("search") or {}
        if search.get("identity") != self.identity:
            return False
        begun = sum((search.get("trials") or {}).values())
        return summary.get("status") != "finished" or begun < self.settings.trials

    def begin(self, folder: Path) -> None:
        super().begin(folder)
        self._study = SearchStudy(folder, self.settings, self.direction, self.space.dimensions, self._whole)
        for trial in self.study.trials("running"):  # the search was interrupted or killed
            self._open[trial.number] = self._opened(self.study.again(trial))

    def ask(self) -> Trial | None:
        for one in self._open.values():
            if one.waiting and one.leave is None:
                return self._job(one, one.waiting.pop(0))
        while len(self.study.trials()) < self.settings.trials:
            one = self._opened(self.study.ask())
            twin = self._twin(one.trial)
            if twin is None:
                self._open[one.trial.number] = one
                return self._job(one, one.waiting.pop(0))
            one.trial.set_user_attr("same_as_trial", twin.number)  # it would give the same bits: none are spent on it
            self.study.tell(one.trial, twin.value)
        return None

    def watch(self, trial: Trial, points: Mapping[int, float]) -> str | None:
        number, seed = divmod(trial.index, len(self._seeds))
        one = self._open.get(number)
        if one is None:
            return self._ended.get(number)
        # Trials share their first seed, and with it their data: by that one they are compared at each step.
        new = {s: v for s, v in sorted(points.items()) if s not in one.seen and math.isfinite(v)} if seed == 0 else {}
        if new and one.leave is None:
            one.seen |= set(new)
            known = self.study.trials()[number].intermediate_values
            for step, value in new.items():
                if step not in known:  # a job that goes on from a checkpoint does some steps again
                    one.trial.report(value, step)
            if one.trial.should_prune():
                step, value = list(new.items())[-1]
                where = f" with {self._seeds[0]}" if self._seeds[0] else ""
                one.leave = f"{self.metric} {value:.4g} at step {step}{where}: worse than the median"
        return one.leave

    def tell(self, trial: Trial, status: str, metrics: Metrics) -> None:
        number, seed = divmod(trial.index, len(self._seeds))
        one = self._open.get(number)
        if one is None or status == "interrupted":  # it goes on when the search goes on
            return
        value = metrics.get(self.settings.metric)
        if status == "finished" and self.settings.metric not in metrics:
            self._missing(metrics)
        if status == "pruned":
            self._end(one, state="pruned", why=one.leave or "pruned")
        elif status != "finished" or value is None or not math.isfinite(value):
            self._end(one, state="fail", why=f"the trial failed with {self._seeds[seed] or 'its job'}")
        else:
            one.values[seed] = float(value)
            if len(one.values) == len(self._seeds):
                self._end(one, fmean(one.values.values()))

    def verdict(self, statuses: Sequence[str]) -> str:
        counts = self._counts()
        done = counts["complete"] and not counts["running"] and sum(counts.values()) >= self.settings.trials
        return "finished" if done else "failed"

    def summary(self) -> dict[str, Any]:
        search: dict[str, Any] = {"identity": self.identity, "metric": self.metric, "direction": self.direction}
        if self._study is not None:
            search |= {"trials": self._counts(), "best": None}
            if best := self._best():
                first = best.number * len(self._seeds)
                search["best"] = {
                    "trial": best.number,
                    "value": best.value,
                    "overrides": list(self.study.point(best)[0]),
                    "jobs": list(range(first, first + len(self._seeds))),
                }
        return {"search": search}

    def headline(self) -> str | None:
        best = self._best() if self._study is not None else None
        if best is None:
            return None
        counts = ", ".join(f"{n} {state}" for state, n in self._counts().items() if n)
        mean = f" (mean of {len(self._seeds)} seeds)" if len(self._seeds) > 1 else ""
        point = " ".join(self.study.point(best)[1])
        return f"best of {counts}: trial {best.number}, {self.metric} {best.value:.6g}{mean}: {point}"

    def _opened(self, trial: Any) -> _Open:
        return _Open(trial, list(range(len(self._seeds))))

    def _job(self, one: _Open, seed: int) -> Trial:
        exact, short = self.study.point(one.trial)
        number, repetition = one.trial.number, self._seeds[seed]
        arm = f"trial {number}: {' '.join(short)}"
        overrides = (*self._fixed, *exact, *([repetition] if repetition else []))
        return Trial(number * len(self._seeds) + seed, overrides, f"{arm} {repetition}".rstrip(), arm)

    def _end(self, one: _Open, value: float | None = None, state: str | None = None, why: str = "") -> None:
        number = one.trial.number
        self.study.tell(one.trial, value, state)
        del self._open[number]
        if why:
            self._ended[number] = why

    def _twin(self, trial: Any) -> Any:
        return next((t for t in self.study.trials("complete") if t.params == trial.params), None)

    def _missing(self, metrics: Metrics) -> None:
        """Raise UserError when the first trial ends without the metric: so would all the others."""
        if not self.study.trials("complete"):
            close = nearest(self.settings.metric, metrics)
            raise UserError(f"sweep.metric={self.settings.metric}: a finished job has no such metric{close}")

    def _counts(self) -> dict[str, int]:
        counts = dict.fromkeys(STATES.values(), 0)
        for trial in self.study.trials(*STATES):
            counts[STATES[trial.state.name.lower()]] += 1
        return counts

    def _best(self) -> Any:
        complete = self.study.trials("complete")
        sign = 1 if self.direction == "minimize" else -1
        return min(complete, key=lambda t: (sign * t.value, t.number), default=None)
