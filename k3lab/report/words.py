"""Numbers and verdicts in words: 0.021 ± 0.006, better by, no difference at this size."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from k3lab.report.analysis import Difference
from k3lab.report.metrics import Metric, metric
from k3lab.report.stats import Estimate

MARKS = {"better": "▲", "worse": "▼", "higher": "△", "lower": "▽", "none": "=", "identical": "=", "open": "?"}


def decimals(half: float, digits: int = 1) -> int:
    """Return the decimals that show so many digits of an interval's half-width, one more if it begins with 1 or 2."""
    if not math.isfinite(half) or half <= 0:
        return 3
    exponent = math.floor(math.log10(half) + 1e-9)
    first = half / 10**exponent + 1e-9
    return max(0, min(8, digits - 1 - exponent + (digits == 1 and first < 3)))


def number(value: float, digits: int = 4) -> str:
    """Return a value with so many significant digits, no exponent between 1e-4 and 1e15."""
    if math.isnan(value):
        return "—"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e15:
        places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        return f"{value:,.{places}f}".replace(",", "\u202f").replace("-", "−")
    return f"{value:.{digits - 1}e}".replace("-", "−")


def plus_minus(estimate: Estimate, scale: float = 1.0, signed: bool = False, digits: int = 1) -> str:
    """Return ``1.523 ± 0.012``, the mean alone without an interval; ``digits`` of the interval."""
    mean = estimate.mean * scale
    if estimate.half is None or math.isnan(mean):
        text = number(mean)
    else:
        half = estimate.half * abs(scale)
        places = decimals(half, digits) if half > 1e-7 * abs(mean) else _places_of(mean)
        text = f"{_fixed(mean, places)} ± {_fixed(half, places)}"
    return f"+{text}" if signed and mean > 0 and re.search(r"[1-9]", text.split(" ")[0]) else text


def size(estimate: Estimate, known: Metric) -> str:
    """Return the size of a difference with its unit, without its sign: ``0.021 ± 0.006 nats``."""
    positive = Estimate(abs(estimate.mean), estimate.half, estimate.n)
    return f"{plus_minus(positive, known.scale)} {known.step_unit}".rstrip()


def verdict(difference: Difference) -> str:
    """Return the verdict line of a comparison."""
    known, estimate = metric(difference.metric), difference.estimate
    signed = f"{plus_minus(estimate, known.scale, True)} {known.step_unit}".rstrip()
    text = {
        "better": f"better by {size(estimate, known)}",
        "worse": f"worse by {size(estimate, known)}",
        "higher": f"higher by {size(estimate, known)}",
        "lower": f"lower by {size(estimate, known)}",
        "none": f"no difference at this size ({signed})",
        "identical": "identical in every seed",
        "open": f"one seed: no verdict ({signed})" if estimate.n else "no values to compare",
    }[difference.judgement]
    if estimate.n >= 1 and not difference.paired:
        text += ", unpaired: no seed is in both"
    return text


def effect(estimate: Estimate, name: str) -> str:
    """Return what a switch does to a metric: ``lowers it by 0.021 ± 0.006 nats (better)``."""
    known = metric(name)
    signed = f"{plus_minus(estimate, known.scale, True)} {known.step_unit}".rstrip()
    if estimate.half is None:
        return f"one seed: no verdict ({signed})"
    if not estimate.sure:
        if estimate.mean == 0 and estimate.half == 0:
            return "nothing at all"
        return f"no effect at this size ({signed})"
    verb = "raises" if estimate.mean > 0 else "lowers"
    return f"{verb} it by {size(estimate, known)}{goodness(estimate, known)}"


def goodness(estimate: Estimate, known: Metric) -> str:
    """Return `` (better)`` or `` (worse)`` for a sure change of a metric with a direction."""
    if not known.better:
        return ""
    return " (better)" if (estimate.mean > 0) == (known.better > 0) else " (worse)"


def listing(items: Iterable[str], last: str = "and", most: int = 12) -> str:
    """Return ``a, b and c``; past ``most`` items their number."""
    found = list(items)
    if len(found) > most:
        found = [*found[: most - 1], f"{len(found) - most + 1} more"]
    if len(found) < 2:
        return "".join(found)
    return f"{', '.join(found[:-1])} {last} {found[-1]}"


def plural(count: int, word: str, several: str | None = None) -> str:
    """Return ``1 run``, ``2 runs``."""
    return f"{count} {word if count == 1 else several or word + 's'}"


def magnitude(value: float, digits: int = 3) -> str:
    """Return a large number with its SI word: ``2.46 M``."""
    for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.{digits}g} {letter}"
    return f"{value:.{digits}g}"


def duration(seconds: float) -> str:
    """Return ``42 s``, ``3.5 min`` or ``2.1 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _fixed(value: float, places: int) -> str:
    rounded = round(value, places) + 0.0  # no minus before a zero
    return f"{rounded:,.{places}f}".replace(",", "\u202f").replace("-", "−")


def _places_of(mean: float) -> int:
    return 3 if mean == 0 else max(0, min(8, 3 - math.floor(math.log10(abs(mean)))))
