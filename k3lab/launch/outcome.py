"""What a finished training says last: the figures that answer "did it work", each beside what to hold it against."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from k3lab.tracking import names
from k3lab.tracking.local import read_summary

# metric, its plain name, its unit, the metric it is held against, and what that is
_LINES = (
    (names.VAL_LOSS, "held-out loss", "nats a token", None, ""),
    (names.VAL_BITS_PER_BYTE, "held-out bits a byte", "", "data/unigram_bits_per_byte", "entropy of single bytes"),
    (names.VAL_ACCURACY, "held-out accuracy", "", None, ""),
    (names.BALANCE_MAX_VIO, "worst layer's MaxVio", "", names.BALANCE_MAX_VIO_FLOOR, "sampling floor"),
    (names.PERF_TOKENS_PER_S, "speed", "tokens/s", None, ""),
)


def print_outcome(folder: Path, console: Console | None = None) -> None:
    """Print a finished run's figures to standard error; says nothing of a run that did not finish."""
    summary = read_summary(folder)
    if not summary or summary.get("status") != "finished":
        return
    metrics = summary.get("metrics") or {}
    table = Table("figure", "value", "beside", title=f"{summary['steps']} steps, {summary['wall_s']:.0f} s")
    for name, label, unit, other, meaning in _LINES:
        if not isinstance(value := metrics.get(name), (int, float)):
            continue
        against = metrics.get(other) if other else None
        beside = f"{against:.4g} ({meaning})" if isinstance(against, (int, float)) else ""
        table.add_row(label, f"{value:,.4g} {unit}".strip(), beside)
    (console or Console(stderr=True)).print(table)
