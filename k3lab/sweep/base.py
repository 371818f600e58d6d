"""What every sweeper offers to the loop that runs its jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3lab.sweep.space import Space


@dataclass(frozen=True)
class Trial:
    """One job to run."""

    index: int
    overrides: tuple[str, ...]  # all of them, each with one value
    label: str  # what distinguishes this job from the others of the sweep


class Sweeper(ABC):
    """Says which jobs to run. ``config`` is the configuration of the space's first point.

    Raises UserError from the constructor for a space that it cannot search.
    """

    def __init__(self, settings: Any, config: Any, space: Space) -> None:
        self.settings, self.config, self.space = settings, config, space
        self.folder: Path | None = None

    def known(self) -> list[Trial]:
        """Return the trials that are certain before any of them ran: they are checked before the first starts."""
        return []

    def begin(self, folder: Path) -> None:
        """Called once with the sweep's folder, new or continued, where a search may keep its state."""
        self.folder = folder

    @abstractmethod
    def ask(self) -> Trial | None:
        """Return the next trial to start, None if there is none (at present: it is asked again after a tell)."""

    @abstractmethod
    def tell(self, trial: Trial, status: str, metrics: dict[str, float | None]) -> None:
        """Take the end of a trial: ``finished``, ``failed`` or ``interrupted``, and its last metrics."""
