"""What a person sees of a sweep: a live table on a terminal, else a line whenever a job ends. All on stderr."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

from rich.console import Console
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
STYLES = {"running": "cyan", "finished": "green", "failed": "bold red", "interrupted": "yellow", "waiting": "dim"}


class Row(Protocol):
    """One job as the board shows it."""

    @property
    def label(self) -> str: ...
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
    """Shows rows during a ``with`` block."""

    def __init__(self, title: str, rows: Sequence[Row]) -> None:
        self._title, self._rows = title, rows
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False) if sys.stderr.isatty() else None
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
            self._live.update(self._table(), refresh=True)

    def ended(self, row: Row) -> None:
        """Tell that a job has ended."""
        done = sum(r.status in ("finished", "failed", "interrupted") for r in self._rows)
        if self._live is None or row.status == "failed":
            result = _result(row.metrics)
            why = f": {row.error}" if row.error else f", {result}" if result else ""
            line = f"[{done}/{len(self._rows)}] {row.label}: {row.status} after {row.wall_s:.0f} s{why}"
            self._console.print(line, markup=False, soft_wrap=True)

    def _table(self) -> Table:
        table = Table(title=Text(self._title, "italic"), title_justify="left")
        for name in ("job", "status", "step", "result", "worst MaxVio", "time"):
            left = name in ("job", "status")
            table.add_column(name, justify="left" if left else "right", no_wrap=name != "job", overflow="fold")
        for row in self._window():
            vio = row.metrics.get(names.BALANCE_MAX_VIO)
            table.add_row(
                Text(row.label),  # not markup: mixer=[kda] has brackets
                Text(row.status, STYLES[row.status]),
                f"{row.steps}/{row.max_steps}",
                _result(row.metrics),
                "" if vio is None else f"{vio:.2f}",
                f"{row.wall_s:.0f} s" if row.wall_s else "",
            )
        hidden = len(self._rows) - table.row_count
        table.caption = f"and {hidden} more" if hidden else None
        return table

    def _window(self) -> list[Row]:
        """Return the rows that fit the terminal: all of them, or those around the running ones."""
        height = self._console.height - 8 if self._live is not None else len(self._rows)
        if len(self._rows) <= height:
            return list(self._rows)
        first = next((i for i, r in enumerate(self._rows) if r.status == "running"), 0)
        first = max(0, min(first - 2, len(self._rows) - height))
        return list(self._rows[first : first + height])


def _result(metrics: dict[str, Any]) -> str:
    for name, unit in RESULTS.items():
        value = metrics.get(name)
        if isinstance(value, (int, float)) and math.isfinite(value):
            return f"{value:.4f} {unit}"
    return ""
