"""Overrides of a sweep, taken apart: those with one value, and the dimensions with several."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hydra.core.override_parser.types import Glob, IntervalSweep
from hydra.core.override_parser.types import Override as HydraOverride
from hydra.errors import HydraException

from k3lab.config.errors import UserError
from k3lab.config.overrides import parse_hydra
from k3lab.config.registry import groups, options

# What is one for a whole sweep: where it writes, who tracks it and who launches it.
FIXED = ("launch", "sweep", "tracking", "paths", "resume", "name")


@dataclass(frozen=True)
class Dimension:
    """A key and the values it takes, each written as an override; ``interval`` instead of values for a(low, high)."""

    key: str
    values: tuple[str, ...]
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Space:
    """The overrides of a sweep."""

    fixed: tuple[str, ...]
    dimensions: tuple[Dimension, ...]

    def first(self) -> list[str]:
        """Return the overrides of one point, the first value of every dimension."""
        return [*self.fixed, *(d.values[0] for d in self.dimensions)]


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


def _dimension(parsed: HydraOverride, text: str) -> Dimension:
    key = parsed.get_key_element()
    value = parsed.value()
    if isinstance(value, IntervalSweep):
        assert value.start is not None
        assert value.end is not None
        return Dimension(parsed.key_or_group, (f"{key}={value.start}",), (float(value.start), float(value.end)))
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
    return Dimension(parsed.key_or_group, tuple(f"{key}={v}" for v in found))
