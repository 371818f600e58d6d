"""Range checks for settings: each raises ValueError with the key, its value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable

from k3lab.config.errors import nearest

MOST = 10**12  # of a whole number that has no limit of its own: beyond it something would overflow, or never end


def _number(key: str, value: float, most: float = MOST) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise ValueError(f"{key}={value}: must be a number")
    if isinstance(value, int) and abs(value) > most:
        raise ValueError(f"{key}={value}: must be at most {most:,}")


def positive(key: str, value: float | None) -> None:
    """Require ``value`` > 0 and finite; None passes."""
    if value is None:
        return
    _number(key, value)
    if not 0 < value < math.inf:
        raise ValueError(f"{key}={value}: must be positive and finite")


def non_negative(key: str, value: float | None) -> None:
    """Require ``value`` ≥ 0 and finite; None passes."""
    if value is None:
        return
    _number(key, value)
    if not 0 <= value < math.inf:
        raise ValueError(f"{key}={value}: must be zero or more, and finite")


def in_range(
    key: str, value: float | None, low: float, high: float, low_open: bool = False, high_open: bool = False
) -> None:
    """Require ``value`` in the interval from ``low`` to ``high``; an open end excludes itself; None passes."""
    if value is None:
        return
    _number(key, value, most=max(MOST, abs(low), abs(high)))
    if value < low or value > high or (low_open and value == low) or (high_open and value == high):
        left, right = "(" if low_open else "[", ")" if high_open else "]"
        raise ValueError(f"{key}={value}: must lie in {left}{low:g}, {high:g}{right}")


def one_of(key: str, value: str, allowed: Iterable[str]) -> None:
    """Require ``value`` to be one of ``allowed``; the message names the nearest."""
    names = list(allowed)
    if value not in names:
        raise ValueError(f"{key}={value}: must be one of {', '.join(names)}{nearest(str(value), names)}")


def divides(key: str, value: int, by_key: str, by: int) -> None:
    """Require ``by`` to divide ``value``."""
    if by == 0 or value % by:
        raise ValueError(f"{key}={value}: must be a multiple of {by_key}={by}")
