"""`k3lab train -m`: every job of a sweep in a fresh process, under one parent run."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from k3lab.config.errors import UserError
from k3lab.config.load import load
from k3lab.config.registry import component
from k3lab.config.schema import mask
from k3lab.launch.base import LOG, Launcher
from k3lab.launch.board import Board
from k3lab.launch.continuation import find_sweep
from k3lab.launch.folders import sweep_folder, unique_id, with_output
from k3lab.launch.job import Job, job_environment
from k3lab.launch.single import split_resume
from k3lab.sweep.base import Sweeper, Trial
from k3lab.sweep.space import parse_space
from k3lab.tracking import environment
from k3lab.tracking.local import last_metrics, read_summary, write_summary
from k3lab.tracking.run import Tracker
from k3lab.training.lock import RunLock, is_running, owner

REFRESH_S = 0.5
LEFTOVER_S = 60.0
ENDED = ("finished", "failed", "interrupted")
ALL_LINES = 2**62  # a step past every line of metrics.jsonl


@dataclass
class Entry:
    """A job and what has become of it."""

    trial: Trial
    config: Any
    folder: Path
    status: str = "waiting"
    code: int | None = None
    run_id: str | None = None
    steps: int = 0
    wall_s: float = 0.0
    metrics: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    began: float = 0.0
    again: bool = False  # it was started before: go on from its checkpoint

    @property
    def label(self) -> str:
        return self.trial.label

    @property
    def max_steps(self) -> int:
        return int(self.config.trainer.max_steps)

    def watch(self) -> None:
        """Read where the running job is."""
        self.steps, self.metrics = last_metrics(self.folder)
        self.wall_s = time.monotonic() - self.began

    def record(self) -> dict[str, Any]:
        """Return the entry as the sweep's summary holds it."""
        return {
            "index": self.trial.index,
            "label": self.label,
            "overrides": [mask(text) for text in self.trial.overrides],
            "status": self.status,
            "folder": self.folder.name,  # in the sweep's folder, which may be moved
            "fingerprint": self.config.fingerprint(),
            "run_id": self.run_id,
            "exit_code": self.code,
            "steps": self.steps,
            "wall_s": round(self.wall_s, 3),
            # The job's own summary has those of single layers.
            "metrics": {k: v for k, v in self.metrics.items() if "/layer_" not in k},
            **({} if self.error is None else {"error": self.error}),
        }


def run_sweep(overrides: list[str]) -> int:
    """Run every job that the overrides mean and print the sweep's folder as the last line.

    Returns 0 if all jobs finished, 1 if any failed, 130 or 143 after a signal. Raises UserError, before
    anything is started or written, if any job's configuration is wrong. ``resume=auto`` goes on with the
    newest sweep of the same jobs that is not finished.
    """
    resume, rest = split_resume(overrides)
    if resume not in (None, "auto"):
        raise UserError(f"resume={resume}: names one run; with -m, resume=auto goes on with an unfinished sweep")
    space = parse_space(rest)
    config = _load(space.first())
    sweeper: Sweeper = component("sweep", config.sweep.name)(config.sweep, config, space)
    configs = _check(sweeper.known())
    folder = find_sweep(config, [c.fingerprint() for c in configs.values()]) if resume else None
    sweep = Sweep(sweeper, config, folder or sweep_folder(config), rest, configs)
    try:
        sweep.folder.mkdir(parents=True, exist_ok=True)
        with RunLock(sweep.folder):
            code = sweep.run()
    except OSError as error:
        raise UserError(f"paths.output: cannot write to {error.filename or sweep.folder}: {error.strerror}") from error
    if sweep.stop.came:
        print("k3lab: interrupted; the same command with resume=auto goes on", file=sys.stderr, flush=True)
    print(sweep.folder, flush=True)
    return code


def _load(overrides: list[str] | tuple[str, ...]) -> Any:
    config = load(overrides)
    return with_output(config, Path(config.paths.output))


def _check(trials: list[Trial]) -> dict[int, Any]:
    """Return every trial's configuration; raises one UserError for all that are wrong."""
    configs: dict[int, Any] = {}
    wrong: dict[str, list[str]] = {}
    for trial in trials:
        try:
            configs[trial.index] = _load(trial.overrides)
        except UserError as error:
            wrong.setdefault(str(error), []).append(trial.label)
    if wrong:
        if len(trials) == 1 or (len(wrong) == 1 and len(trials) == len(next(iter(wrong.values())))):
            raise UserError(next(iter(wrong)))
        refused = sum(len(labels) for labels in wrong.values())
        lines = [f"{message} ({labels[0]}{', …' if len(labels) > 1 else ''})" for message, labels in wrong.items()]
        raise UserError(f"{refused} of {len(trials)} jobs are refused: {'; '.join(lines)}")
    return configs


class Sweep:
    """The loop: ask the sweeper, start on the launcher, read what a job left, tell the sweeper."""

    def __init__(
        self, sweeper: Sweeper, config: Any, folder: Path, overrides: list[str], configs: dict[int, Any]
    ) -> None:
        self.sweeper, self.config, self.folder, self.overrides = sweeper, config, folder, overrides
        self.launcher: Launcher = component("launch", config.launch.name)(config.launch, config)
        self.before = read_summary(folder) or {}  # of a sweep that goes on
        self.started = self.before.get("started") or time.time()
        self.run_id: str | None = self.before.get("run_id")
        self.entries = [self._entry(trial, configs[trial.index]) for trial in sweeper.known()]
        self.board = Board(f"{folder}: {len(self.entries) or 'a search of'} jobs", self.entries)
        self.tracker: Tracker | None = None
        self.stop = _Stop(self.launcher)

    def run(self) -> int:
        """Run what is left to run and return the exit code."""
        with self.stop:
            return self._run()

    def _run(self) -> int:
        self._write("running")
        self.sweeper.begin(self.folder)
        words = " ".join(mask(text) for text in self.overrides)
        self.tracker = Tracker.open(self.config, self.folder, run_id=self.run_id, params={"overrides": words})
        for line in dict.fromkeys(w for e in self.entries for w in e.config.warnings()):
            print(f"k3lab: warning: {line}", file=sys.stderr)
        status = "failed"
        try:
            self.run_id = self.tracker.run_id or self.run_id
            with self.board:
                self._loop()
            status = self._status()
        finally:
            self.launcher.kill()  # nothing is left to kill, unless the loop was left by an exception
            self._write(status)
            self.tracker.finish(status)
        return {"finished": 0, "failed": 1, "interrupted": self.stop.exit_code}[status]

    def _loop(self) -> None:
        running: dict[str, Entry] = {}
        while True:
            while self.launcher.free() > 0 and not self.stop.came and (trial := self.sweeper.ask()) is not None:
                entry = self._entry_of(trial)
                if entry.status == "finished":  # by the sweep that this one goes on with
                    self.sweeper.tell(trial, entry.status, entry.metrics)
                elif self._start(entry):
                    running[str(entry.folder)] = entry
                else:
                    self._ended(entry)
            if not running:
                return
            for job, code in self.launcher.ended(REFRESH_S):
                entry = running.pop(job.folder)
                entry.code = code
                self._settle(entry)
                self._ended(entry)
            for entry in running.values():
                entry.watch()
            self.stop.patience(self.config.launch)
            self.board.refresh()

    def _start(self, entry: Entry) -> bool:
        job = Job(
            index=entry.trial.index,
            label=entry.label,
            overrides=list(entry.trial.overrides),
            folder=str(entry.folder),
            cwd=os.getcwd(),
            parent_run_id=self.run_id,
            resume=entry.again,
        )
        entry.status, entry.began, entry.error = "running", time.monotonic(), None
        while entry.again and is_running(entry.folder) and time.monotonic() - entry.began < LEFTOVER_S:
            time.sleep(REFRESH_S)  # the sweep was killed a moment ago, and its jobs are saving
        job.write()
        try:
            self.launcher.start(job, entry.config, job_environment(entry.config))
        except OSError as error:
            self._fail(entry, f"the job could not be started: {error.strerror or error}", {})
            return False
        self._write("running")
        return True

    def _settle(self, entry: Entry) -> None:
        """Take a job's end from its summary; one that died before it could tell is recorded as failed."""
        entry.watch()
        summary = read_summary(entry.folder) or {}
        status = summary.get("status")
        if status not in ENDED or (status == "finished") != (entry.code == 0):
            self._fail(entry, _last_words(entry.folder, entry.code), summary)
            return
        entry.status, entry.error = status, summary.get("error")
        entry.run_id, entry.steps = summary.get("run_id"), int(summary.get("steps") or 0)
        entry.metrics = summary.get("metrics") or {}

    def _fail(self, entry: Entry, error: str, summary: dict[str, Any]) -> None:
        entry.status, entry.error = "failed", error
        entry.run_id = summary.get("run_id")
        begun = {"steps": entry.steps, "tokens": 0, "wall_s": round(entry.wall_s, 3), "metrics": entry.metrics}
        own = {"run_id": entry.run_id, "fingerprint": entry.config.fingerprint(), "started": time.time() - entry.wall_s}
        own["environment"] = environment.describe()
        summary = {**begun, **own, **summary, "status": "failed", "error": error}
        with suppress(OSError):
            write_summary(entry.folder, summary)
        if self.run_id is None:  # the store does not answer the sweep either
            return
        with suppress(OSError, UserError):
            tracker = Tracker.open(entry.config, entry.folder, self.run_id, entry.run_id, start_step=ALL_LINES)
            with suppress(UserError):
                entry.run_id = tracker.run_id
            tracker.finish("failed", {**summary, "run_id": entry.run_id})

    def _ended(self, entry: Entry) -> None:
        self.sweeper.tell(entry.trial, entry.status, entry.metrics)
        self.board.ended(entry)
        self.board.refresh(at_once=True)
        self._write("running")

    def _entry_of(self, trial: Trial) -> Entry:
        for entry in self.entries:
            if entry.trial.index == trial.index:
                return entry
        self.entries.append(self._entry(trial, _load(trial.overrides)))  # a search decides as it goes
        return self.entries[-1]

    def _entry(self, trial: Trial, config: Any) -> Entry:
        fingerprint = config.fingerprint()
        for old in self.before.get("jobs", []):
            if old["index"] == trial.index and old["fingerprint"] == fingerprint:
                done = old["status"] == "finished"
                entry = Entry(trial, config, self.folder / old["folder"], again=old["status"] != "waiting")
                entry.run_id, entry.steps, entry.metrics = old["run_id"], old["steps"], old["metrics"]
                if done:
                    entry.status, entry.code, entry.wall_s = "finished", 0, old["wall_s"]
                return entry
        return Entry(trial, config, self.folder / f"{trial.index:03d}-{unique_id()}")

    def _status(self) -> str:
        if self.stop.came:
            return "interrupted"
        return "finished" if all(e.status == "finished" for e in self.entries) else "failed"

    def _write(self, status: str) -> None:
        write_summary(
            self.folder,
            {
                "kind": "sweep",
                "status": status,
                "run_id": self.run_id,
                "started": self.started,
                "wall_s": round(time.time() - self.started, 3),
                "overrides": [mask(text) for text in self.overrides],
                "jobs": [entry.record() for entry in self.entries],
                "process": owner(),
            },
        )


class _Stop:
    """SIGINT and SIGTERM during a ``with`` block: passed on to the jobs, which save; no further job starts."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.came: int | None = None
        self._at = 0.0

    @property
    def exit_code(self) -> int:
        return 128 + (self.came or signal.SIGINT)

    def patience(self, settings: Any) -> None:
        """Kill the jobs that are still running when their time to save is over."""
        if self.came and time.monotonic() - self._at > getattr(settings, "grace", 60.0):
            self.launcher.kill()

    def __enter__(self) -> _Stop:
        self._before = {n: signal.signal(n, self._handle) for n in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.came is None:
            self.came, self._at = number, time.monotonic()
            print("k3lab: the running jobs save a checkpoint and end; again: at once", file=sys.stderr, flush=True)
        self.launcher.signal(number)


def _last_words(folder: Path, code: int | None) -> str:
    """Return why a job ended: the signal that killed it, and the last line that it printed."""
    if code is not None and code < 0:
        try:
            how = f"killed by {signal.Signals(-code).name}"
        except ValueError:
            how = f"killed by signal {-code}"
    else:
        how = f"ended with exit code {code}"
    try:
        with (folder / LOG).open("rb") as log:
            log.seek(max(0, (folder / LOG).stat().st_size - 4096))
            lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    return f"{how}: {lines[-1].removeprefix('k3lab: ')}" if lines else how
