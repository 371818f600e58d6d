"""What a person sees of a training: a live panel on a terminal, one plain line now and then anywhere else.

Both go to standard error, so that standard output holds nothing but the run's folder.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from datetime import timedelta

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from k3lab.tracking import names


class Display:
    """Progress of one run; ``update`` after every optimizer step."""

    def __init__(
        self, title: str, max_steps: int, start_step: int, every: int, bytes_per_token: float | None, live: bool
    ) -> None:
        self.title = title
        self.max_steps = max_steps
        self.start_step = start_step
        self.every = every
        self.bytes_per_token = bytes_per_token
        self.console = Console(stderr=True)
        self._step = start_step
        self._latest: Mapping[str, float] = {}
        self._began = time.perf_counter()
        self.live: Live | None = None
        if live and self.console.is_terminal:
            self.live = Live(get_renderable=self._panel, console=self.console, refresh_per_second=2)

    def __enter__(self) -> Display:
        if self.live is not None:
            self.live.start(refresh=True)
        else:
            _print(self.title)
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def start(self) -> None:
        """The first step begins: rates count from here."""
        self._began = time.perf_counter()

    def update(self, step: int, latest: Mapping[str, float]) -> None:
        """Show the state after ``step`` steps; ``latest`` holds the last value of every metric."""
        self._step, self._latest = step, latest
        if self.live is None and (step % self.every == 0 or step in (self.start_step + 1, self.max_steps)):
            _print(f"step {step}/{self.max_steps}  " + "  ".join(f"{k} {v}" for k, v in self._cells()))

    def note(self, line: str) -> None:
        """Show one line that stays."""
        if self.live is not None:
            self.live.console.print(Text(line))
        else:
            _print(line)

    def eta(self) -> str:
        """Return the time that the remaining steps need at the pace so far, all pauses included."""
        done = self._step - self.start_step
        if done <= 0:
            return "–"
        seconds = (time.perf_counter() - self._began) / done * (self.max_steps - self._step)
        return str(timedelta(seconds=round(seconds)))

    def _cells(self) -> list[tuple[str, str]]:
        loss = self._latest.get(names.TRAIN_LOSS, math.nan)
        cells = [("loss", f"{loss:.4f}")]
        if self.bytes_per_token is not None:
            cells.append(("bits/byte", f"{loss / math.log(2) / self.bytes_per_token:.3f}"))
        for name, label in ((names.VAL_LOSS, "val loss"), (names.VAL_BITS_PER_BYTE, "val bits/byte")):
            if name in self._latest:
                cells.append((label, f"{self._latest[name]:.4f}"))
        if names.PERF_TOKENS_PER_S in self._latest:
            cells.append(("tokens/s", f"{self._latest[names.PERF_TOKENS_PER_S]:,.0f}"))
        cells.append(("ETA", self.eta()))
        if names.BALANCE_MAX_VIO in self._latest:
            floor = self._latest.get(names.BALANCE_MAX_VIO_FLOOR, math.nan)
            worst = self._latest[names.BALANCE_MAX_VIO]
            cells.append(("worst MaxVio", f"{worst:.2f} (floor {floor:.2f})"))
        return cells

    def _panel(self) -> RenderableType:
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=self.max_steps, completed=self._step, width=40),
            f"step {self._step}/{self.max_steps}",
        )
        figures = Table.grid(padding=(0, 3))
        cells = self._cells()
        figures.add_row(*(Text(k, style="dim") for k, _ in cells))
        figures.add_row(*(Text(v, style="bold") for _, v in cells))
        return Group(Text(self.title), bar, figures)


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
