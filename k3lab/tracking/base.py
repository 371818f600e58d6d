"""What every tracking backend offers. A backend lives in the courier process, never beside the training.

Its methods are called by one thread, may block, and may raise anything: the courier repeats what failed for a
passing reason (``transient``), so each of them can be called again with the same arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple


class Point(NamedTuple):
    """One value of one metric."""

    name: str
    value: float
    time: float  # seconds of the Unix clock
    step: int


class Stored(NamedTuple):
    """What a run's store holds already. Values arrive in order, so one step a metric says most of it."""

    latest: dict[str, int]  # metric -> its largest step
    past: dict[str, set[int]]  # metric -> its steps beyond the one that was asked for


@dataclass(frozen=True)
class RunRequest:
    """A run to create, or to open again."""

    folder: str  # absolute path of the run folder
    output: str  # absolute paths.output
    experiment: str
    run_name: str
    run_id: str | None = None  # the run to continue
    parent_run_id: str | None = None
    start_step: int = 0  # optimizer steps done before
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The folder's last two names: unique, and the same after the folder was moved."""
        return "/".join(Path(self.folder).parts[-2:])


class Backend:
    """A place that metrics are sent to."""

    remote: ClassVar[bool] = True  # False: there is nothing to send, metrics.jsonl is all

    def __init__(self, settings: Any, output: Path) -> None:
        self.settings = settings
        self.output = output

    def open(self, request: RunRequest) -> str:
        """Create the run, or continue the one that was created before for this folder; returns its id.

        Raises UserError for what only the user can mend.
        """
        return ""

    def stored(self, run_id: str, after: int) -> Stored:
        """Return what the run holds, with the exact steps beyond ``after``."""
        return Stored({}, {})

    def log(self, run_id: str, points: list[Point]) -> None:
        """Store at most 1000 points."""

    def artifact(self, run_id: str, path: str, folder: str | None) -> None:
        """Store a file or a folder of files."""

    def finish(self, run_id: str, status: str) -> None:
        """Close the run as ``finished``, ``failed`` or ``interrupted``."""

    def transient(self, error: Exception) -> bool:
        """Return whether the same call may succeed later."""
        return True

    def describe(self, error: Exception) -> str:
        """Return an error as one line without passwords."""
        text = " ".join(str(error).split())
        return f"{type(error).__name__}: {text[:300]}"
