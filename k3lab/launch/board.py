"""What a person sees of a sweep: a live table on a terminal, else a line whenever a job ends. All on stderr.

Jobs that differ in their seed alone are one arm and share a row: the mean of the seeds that have ended, with
their standard deviation.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from k3lab.tracking import names

RESULTS = {  # the first one that a job has is its result
    names.VAL_BITS_PER_BYTE: "bits/byte",
    names.VAL_ACCURACY: "accuracy",
    names.VAL_LOSS: "val loss",
    names.TRAIN_LOSS: "train loss",
}
STYLES = {  # an arm has the first of these that one of its jobs has
    "failed": "bold red",
    "running": "cyan",
    "interrupted": "yellow",
    "pruned": "magenta",
    "waiting": "dim",
    "finished": "green",
}
FILE_WIDTH = 120  # columns where stderr is no terminal
ENDED = ("finished", "failed", "pruned", "interrupted")


class Row(Protocol):
    """One job as the board shows it."""

    @property
    def label(self) -> str: ...
    @property
    def arm(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def steps(self) -> int: ...
    @property
    def max_steps(self) -> int: ...
    @property
    def wall_s(self) -> float: ...
    @property
    def metrics(self) -> dict[str, Any]: ...
    @property
    def error(self) -> str | None: ...


class Board:
    """Shows rows during a ``with`` block; ``total`` jobs are expected, ``headline`` gives a line below the table.

    ``metric``, where jobs have it, is the result that they are compared by.
    """

    def __init__(
        self,
        title: str,
        rows: Sequence[Row],
        total: int | None = None,
        headline: Callable[[], str | None] = lambda: None,
        metric: str | None = None,
    ) -> None:
        self._title, self._rows, self._total, self._headline = title, rows, total, headline
        self._results = {**({metric: RESULTS.get(metric, metric)} if metric else {}), **RESULTS}
        terminal = sys.stderr.isatty()
        self._console = Console(stderr=True, highlight=False, width=None if terminal else FILE_WIDTH)
        self._live = Live(console=self._console, auto_refresh=False) if terminal else None
        self._shown = 0.0

    def __enter__(self) -> Board:
        if self._live is None:
            print(f"k3lab: {self._title}", file=sys.stderr, flush=True)
        else:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            self._live.stop()
        else:
            self._console.print(self._table())

    def refresh(self, at_once: bool = False) -> None:
        """Redraw the live table, at most once a second unless ``at_once``."""
        if self._live is not None and (at_once or time.monotonic() - self._shown >= 1.0):
            self._shown = time.monotonic()
            line = self._headline()
            self._live.update(Group(self._table(), Text(line or "", "green")), refresh=True)

    def ended(self, row: Row) -> None:
        """Tell that a job has ended."""
        done = sum(r.status in ENDED for r in self._rows)
        if self._live is None or row.status == "failed":
            value, unit = self._result([row])
            why = f": {row.error}" if row.error else f", {value} {unit}" if value else ""
            total = max(self._total or 0, len(self._rows))
            line = f"[{done}/{total}] {row.label}: {row.status} after {row.wall_s:.0f} s{why}"
            self._console.print(line, markup=False, soft_wrap=True)

    def _table(self) -> Table:
        arms = self._arms()
        shown = self._window(arms)
        results = [self._result(rows) for _, rows in shown]
        units = {unit for _, unit in results if unit}
        repeated = any(len(rows) > 1 for _, rows in arms)
        title = (units.pop() if len(units) == 1 else "result") + (" ± sd" if repeated else "")
        table = Table(title=Text(self._title, "italic"), title_justify="left")
        table.add_column("arm" if repeated else "job", overflow="fold")
        table.add_column("status", no_wrap=True)
        for name in (*(["seeds"] if repeated else []), "step", title, "MaxVio", "time"):
            table.add_column(name, justify="right", no_wrap=True)
        for (label, rows), (value, unit) in zip(shown, results, strict=True):
            status = next(s for s in STYLES if s in {r.status for r in rows})
            vio = _mean(rows, names.BALANCE_MAX_VIO)
            wall_s = sum(r.wall_s for r in rows)
            table.add_row(
                Text(label),  # not markup: mixer=[kda] has brackets
                Text(status, STYLES[status]),
                *([f"{sum(r.status == 'finished' for r in rows)}/{len(rows)}"] if repeated else []),
                f"{sum(r.steps for r in rows)}/{sum(r.max_steps for r in rows)}",
                value if unit in title else f"{value} {unit}",
                "" if vio is None else f"{vio:.2f}",
                f"{wall_s:.0f} s" if wall_s else "",
            )
        hidden = len(arms) - len(shown)
        table.caption = f"and {hidden} more" if hidden else None
        return table

    def _arms(self) -> list[tuple[str, list[Row]]]:
        """Return the rows by arm, or one by one where that would leave a single arm."""
        arms: dict[str, list[Row]] = {}
        for row in self._rows:
            arms.setdefault(row.arm, []).append(row)
        if len(arms) > 1 and len(arms) < len(self._rows):
            return list(arms.items())
        return [(row.label, [row]) for row in self._rows]

    def _window(self, arms: list[tuple[str, list[Row]]]) -> list[tuple[str, list[Row]]]:
        """Return the arms that fit the terminal: all of them, or those around the running ones."""
        height = self._console.height - 9 if self._live is not None else len(arms)
        if len(arms) <= height:
            return arms
        first = next((i for i, (_, rows) in enumerate(arms) if any(r.status == "running" for r in rows)), 0)
        first = max(0, min(first - 2, len(arms) - height))
        return arms[first : first + height]

    def _result(self, rows: Sequence[Row]) -> tuple[str, str]:
        """Return value and unit: the mean over the jobs that finished, else over those that have any value yet.

        What a failed job had before it failed is no result.
        """
        for some in ([r for r in rows if r.status == "finished"], [r for r in rows if r.status != "failed"]):
            for name, unit in self._results.items():
                values = _values(some, name)
                if values:
                    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
                    return f"{statistics.fmean(values):.4f}{spread}", unit
        return "", ""


def _mean(rows: Sequence[Row], name: str) -> float | None:
    values = _values([r for r in rows if r.status == "finished"], name) or _values(rows, name)
    return statistics.fmean(values) if values else None


def _values(rows: Sequence[Row], name: str) -> list[float]:
    found = [r.metrics.get(name) for r in rows]
    return [float(v) for v in found if isinstance(v, (int, float)) and math.isfinite(v)]
