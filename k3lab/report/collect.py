"""Which runs a report is about: an experiment's name, a run's id, or a folder of runs; from the store and the disk.

A run's folder is the first witness where it still lies under the output folder: it is complete even when a
server was not. The store knows which runs belong together, which were deleted, and all of those whose folders
are gone.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k3lab.config.errors import UserError, nearest
from k3lab.config.schema import mask
from k3lab.report import folders
from k3lab.report.record import Run
from k3lab.report.store import COMMAND_TAG, FOLDER_TAG, PARENT_TAG, Store, is_deleted, open_store

GROUPING = "sweep-"  # how the folder of a run that only groups others begins


@dataclass(frozen=True)
class Absent:
    """A job of a sweep of which there is no run."""

    label: str
    status: str
    error: str


@dataclass
class Found:
    """The runs of a report, and what is to be said of how they were found."""

    title: str
    runs: list[Run]
    absent: list[Absent] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    source: str = ""  # where they were read
    sweeps: dict[str, str] = field(default_factory=dict)  # id or folder of a sweep -> its command

    def commands(self) -> list[str]:
        """Return the command lines that made the runs, each once; empty texts are left out."""
        siblings = Counter(run.parent for run in self.runs)
        found = []
        for run in self.runs:
            sweep = self.sweeps.get(run.parent or "")
            found.append(sweep if sweep and siblings[run.parent] > 1 else run.command)
        return list(dict.fromkeys(command for command in found if command))


def collect(targets: list[str], output: Path, uri: str | None = None) -> Found:
    """Return the runs that ``targets`` name; raises UserError if one names nothing."""
    store, note = open_store(output, uri)
    search = _Search(output, store)
    if not targets:
        raise UserError(f"name an experiment, a run id or a run folder; {search.there_are()}")
    for target in targets:
        search.add(target)
    runs = sorted(search.runs.values(), key=lambda run: (run.started, run.label))
    found = Found(", ".join(dict.fromkeys(search.titles)), runs, list(search.absent.values()), search.notes)
    found.sweeps = search.sweeps
    found.source = note or f"Read from the MLflow store {mask(store.uri) if store else ''} and the run folders"
    if not runs and not found.absent:
        raise UserError(f"{' '.join(targets)}: has no runs yet; {search.there_are()}")
    return found


class _Search:
    def __init__(self, output: Path, store: Store | None) -> None:
        self.output, self.store = output, store
        self.tree = {folders.label_of(f): f for f in folders.find(output)} if output.is_dir() else {}
        self.runs: dict[str, Run] = {}  # by label
        self.absent: dict[str, Absent] = {}
        self.sweeps: dict[str, str] = {}
        self.titles: list[str] = []
        self.notes: list[str] = []

    def add(self, target: str) -> None:
        """Add what one word of the command line names."""
        named = target.rstrip("/") or target
        is_path = os.sep in named or named.startswith(".")
        if not is_path and self._experiment(named):
            return
        for place in (Path(target), self.output / target):
            if place.is_dir() and (below := folders.find(place)):
                self._folders(below)
                own = folders.read_run(place).experiment if place in below else place.absolute().name
                self.titles.append(own)
                return
        if self.store is not None and (run := self.store.get(named)) is not None:
            self._stored(run)
            return
        if below := [f for f in self.tree.values() if f.name == named]:
            self.add(str(below[0]))
            return
        raise UserError(f"{target}: is no experiment, run id or run folder{self._near(named)}; {self.there_are()}")

    def there_are(self) -> str:
        """Return the names of the experiments that have runs."""
        known = self._experiments()
        shown = ", ".join(known[:8]) + (", …" if len(known) > 8 else "")
        return f"experiments in {self.output}: {shown}" if known else f"{self.output} holds no runs"

    def _near(self, name: str) -> str:
        return nearest(name, [*self._experiments(), *(f.name for f in self.tree.values())])

    def _experiments(self) -> list[str]:
        known = [n for n in (self.store.experiments if self.store else {}) if n != "Default"]
        known += [f.relative_to(self.output).parts[0] for f in self.tree.values() if f != self.output]
        return list(dict.fromkeys(known))

    def _experiment(self, name: str) -> bool:
        stored = self.store.runs(name) if self.store is not None and name in self.store.experiments else []
        below = folders.find(self.output / name) if (self.output / name).is_dir() else []
        deleted = {run.data.tags.get(FOLDER_TAG, run.info.run_id) for run in stored if is_deleted(run)}
        parents = {run.data.tags.get(PARENT_TAG) for run in stored}
        for run in stored:
            if not is_deleted(run):
                self._stored_one(run, parents)
        gone = [f for f in below if {folders.label_of(f), folders.label_of(f.parent)} & deleted]
        self._folders([f for f in below if f not in gone])
        if deleted:
            self.notes.append(f"{len(deleted)} runs that were deleted in MLflow are left out")
        if stored or below:
            self.titles.append(name)
        return bool(stored or below)

    def _stored(self, run: Any) -> None:
        assert self.store is not None
        siblings = self.store.runs(self.store.experiment_name(run)) if self.store.experiment_name(run) else [run]
        inside = [r for r in siblings if r.data.tags.get(PARENT_TAG) == run.info.run_id and not is_deleted(r)]
        for one in [run, *inside]:
            self._stored_one(one, {run.info.run_id} if inside else set())
        self.titles.append(self.store.experiment_name(run))

    def _stored_one(self, run: Any, parents: set[str | None]) -> None:
        assert self.store is not None
        label = run.data.tags.get(FOLDER_TAG, run.info.run_id)
        if run.info.run_id in parents or label.rsplit("/", 1)[-1].startswith(GROUPING):
            if command := run.data.tags.get(COMMAND_TAG):
                self.sweeps[run.info.run_id] = command
            if folder := self.tree.get(label):
                self._folders([folder])
            return
        if (folder := self.tree.get(label)) is None:
            self._keep(self.store.read(run))
            return
        found = folders.read_run(folder)
        tags = run.data.tags
        found.id, found.command = run.info.run_id, tags.get(COMMAND_TAG) or found.command
        stored = {k.removeprefix("environment."): v for k, v in tags.items() if k.startswith("environment.")}
        found.environment = {**stored, **found.environment}
        found.config = found.config or dict(run.data.params)
        found.experiment = self.store.experiment_name(run) or found.experiment
        found.parent = tags.get(PARENT_TAG) or found.parent
        self._keep(found)

    def _folders(self, below: list[Path]) -> None:
        for folder in below:
            if folders.sweep_summary(folder) is not None or folder.name.startswith(GROUPING):
                if command := folders.sweep_command(folder):
                    self.sweeps[str(folder)] = command
                for label, status, error in folders.unstarted(folder):
                    self.absent[f"{folder}/{label}"] = Absent(label, status, error)
            elif folders.label_of(folder) not in self.runs:
                self._keep(folders.read_run(folder))

    def _keep(self, run: Run) -> None:
        if not run.config:  # it died before it could say what it was
            self.absent[run.label] = Absent(run.label, run.status, run.error)
        else:
            self.runs.setdefault(run.label, run)
