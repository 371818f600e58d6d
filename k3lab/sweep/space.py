"""Overrides of a sweep, taken apart: those with one value, and the dimensions with several."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import Glob, IntervalSweep, RangeSweep, Sweep
from hydra.core.override_parser.types import Override as HydraOverride
from hydra.errors import HydraException

from k3lab.config.errors import UserError
from k3lab.config.overrides import parse_hydra
from k3lab.config.registry import groups, options

# What is one for a whole sweep: where it writes, who tracks it and who launches it.
FIXED = ("launch", "sweep", "tracking", "paths", "resume", "name")
LOG = "log"  # tag(log, interval(…)): equal ratios are equally far apart


@dataclass(frozen=True)
class Scale:
    """Numbers in order: all from ``low`` to ``high``, or every ``step``."""

    low: float
    high: float
    step: float | None = None
    log: bool = False


@dataclass(frozen=True)
class Dimension:
    """A key and the values it takes, each written as an override; with a continuous scale, the lowest one alone."""

    key: str
    values: tuple[str, ...]
    scale: Scale | None = None

    @property
    def continuous(self) -> bool:
        """Whether there are values between those listed."""
        return self.scale is not None and self.scale.step is None


@dataclass(frozen=True)
class Space:
    """The overrides of a sweep."""

    fixed: tuple[str, ...]
    dimensions: tuple[Dimension, ...]

    def first(self) -> list[str]:
        """Return the overrides of one point, the first value of every dimension."""
        return [*self.fixed, *(d.values[0] for d in self.dimensions)]

    def repeated(self, seeds: int | None, first: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the fixed overrides without a seed and ``seeds`` overrides of the seed, counted up from ``first``.

        Without ``seeds`` the fixed overrides stay as they are. Raises UserError if the seed is swept as well.
        """
        if seeds is None:
            return self.fixed, ()
        if any(d.key == "seed" for d in self.dimensions):
            raise UserError(f"sweep.seeds={seeds}: seed is swept already; give one of the two")
        fixed = tuple(text for text in self.fixed if not text.startswith("seed="))
        return fixed, tuple(f"seed={seed}" for seed in range(first, first + seeds))


def parse_space(overrides: Iterable[str]) -> Space:
    """Take the overrides of a command line apart; raises UserError for what is malformed or cannot be swept."""
    fixed: list[str] = []
    dimensions: list[Dimension] = []
    keys: dict[str, bool] = {}
    for text in overrides:
        parsed = parse_hydra(text)
        key, swept = parsed.key_or_group, bool(parsed.is_sweep_override())
        if key in keys and (swept or keys[key]):
            raise UserError(f"{text}: {key} is given twice, and swept")
        keys[key] = swept
        if not swept:
            fixed.append(text)
            continue
        if key.split(".")[0] in FIXED:
            raise UserError(f"{text}: {key.split('.')[0]} is one for the whole sweep: give it one value")
        dimensions.append(_dimension(parsed, text))
    return Space(tuple(fixed), tuple(dimensions))


def with_arms(overrides: Iterable[str], arms: Iterable[str] | None) -> list[str]:
    """Return the overrides of a command line and those of ``sweep.arms`` whose key it does not give itself."""
    given = list(overrides)
    keys = {parse_hydra(text).key_or_group for text in given}
    return given + [text for text in arms or () if parse_hydra(text).key_or_group not in keys]


def number(value: float) -> str:
    """Return a number as an override has it, whole ones without a point."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _dimension(parsed: HydraOverride, text: str) -> Dimension:
    key, value = parsed.get_key_element(), parsed.value()
    log = _is_log(value, text)
    if isinstance(value, IntervalSweep):
        assert value.start is not None
        assert value.end is not None
        bounds = Scale(float(value.start), float(value.end), log=log)
        _check_scale(bounds, text)
        return Dimension(parsed.key_or_group, (f"{key}={number(bounds.low)}",), bounds)
    try:
        if isinstance(value, Glob):
            if parsed.key_or_group not in groups():
                raise UserError(f"{text}: glob() chooses among a group's options; groups: {', '.join(groups())}")
            found = value.filter(list(options(parsed.key_or_group)))
        else:
            found = list(parsed.sweep_string_iterator())
    except (HydraException, ValueError, TypeError) as error:
        raise UserError(f"{text}: {' '.join(str(error).split())}") from error
    if not found:
        raise UserError(f"{text}: no value matches")
    scale = _steps(value, found, log, text) if isinstance(value, RangeSweep) else None
    return Dimension(parsed.key_or_group, tuple(f"{key}={v}" for v in found), scale)


def _steps(value: RangeSweep, found: list[str], log: bool, text: str) -> Scale | None:
    """Return the scale of a range, None for one that is no order: a single value, or shuffled."""
    if len(found) < 2 or value.shuffle:
        return None
    numbers = sorted(float(v) for v in found)
    scale = Scale(numbers[0], numbers[-1], abs(float(value.step)), log)
    if log and scale.step != 1:
        raise UserError(f"{text}: a logarithmic range has steps of 1; or take tag(log,interval(…))")
    _check_scale(scale, text)
    return scale


def _is_log(value: Any, text: str) -> bool:
    tags = sorted(map(str, value.tags)) if isinstance(value, Sweep) else []
    if not tags:
        return False
    if tags != [LOG]:
        raise UserError(f"{text}: tag({', '.join(tags)}): the only tag is {LOG}, for a logarithmic scale")
    if not isinstance(value, (IntervalSweep, RangeSweep)):
        raise UserError(f"{text}: tag({LOG}, …) needs an interval() or a range()")
    return True


def _check_scale(scale: Scale, text: str) -> None:
    if not scale.low < scale.high:
        raise UserError(f"{text}: the first bound must be below the second")
    if scale.log and scale.low <= 0:
        raise UserError(f"{text}: a logarithmic scale needs positive bounds")
