"""What every sweeper offers to the loop that runs its jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3lab.sweep.space import Space

Metrics = Mapping[str, float | None]  # None: NaN or an infinity


@dataclass(frozen=True)
class Trial:
    """One job to run."""

    index: int
    overrides: tuple[str, ...]  # all of them, each with one value
    label: str  # what distinguishes this job from the others of the sweep
    arm: str  # the label without the seed: jobs of one arm are repetitions of each other


class Sweeper(ABC):
    """Says which jobs to run. ``config`` is the configuration of the space's first point.

    Raises UserError from the constructor for a space that it cannot search.
    """

    metric: str | None = None  # the one that ``watch`` is shown and ``tell`` needs

    def __init__(self, settings: Any, config: Any, space: Space) -> None:
        self.settings, self.config, self.space = settings, config, space
        self.folder: Path | None = None

    @abstractmethod
    def describe(self) -> str:
        """Return what there is to do as a few words, such as ``12 jobs``."""

    @abstractmethod
    def total(self) -> int:
        """Return how many jobs there are to run, at most."""

    def known(self) -> list[Trial]:
        """Return the trials that are certain before any of them ran: they are checked before the first starts."""
        return []

    def continues(self, summary: Mapping[str, Any], fingerprints: Sequence[str]) -> bool:
        """Return whether the sweep that left this summary is this one, and has something left to do.

        ``fingerprints`` are those of the configurations of ``known``.
        """
        same = [job.get("fingerprint") for job in summary.get("jobs", [])] == list(fingerprints)
        return same and summary.get("status") != "finished"

    def begin(self, folder: Path) -> None:
        """Called once with the sweep's folder, new or continued, where a search may keep its state."""
        self.folder = folder

    @abstractmethod
    def ask(self) -> Trial | None:
        """Return the next trial to start, None if there is none (at present: it is asked again after a tell)."""

    def watch(self, trial: Trial, points: Mapping[int, float]) -> str | None:
        """Take what a running trial has at its validations, step → value; returns why it should end, if it should."""
        return None

    @abstractmethod
    def tell(self, trial: Trial, status: str, metrics: Metrics) -> None:
        """Take the end of a trial, ``finished``, ``failed``, ``pruned`` or ``interrupted``, and its last metrics."""

    def verdict(self, statuses: Sequence[str]) -> str:
        """Return ``finished`` if the sweep did what was asked, given what became of its jobs; else ``failed``."""
        return "finished" if all(status == "finished" for status in statuses) else "failed"

    def summary(self) -> dict[str, Any]:
        """Return what the sweep's summary.json should hold besides its jobs."""
        return {}

    def headline(self) -> str | None:
        """Return the result so far as one line."""
        return None
