"""`k3lab train -m`: every job of a sweep in a fresh process, under one parent run."""

from __future__ import annotations

import signal
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from k3lab.config.errors import UserError, nearest
from k3lab.config.load import load
from k3lab.config.registry import component
from k3lab.config.schema import mask
from k3lab.launch.base import LOG, Launcher
from k3lab.launch.board import Board
from k3lab.launch.continuation import find_sweep
from k3lab.launch.entry import ENDED, Entry
from k3lab.launch.folders import sweep_folder, unique_id, with_output
from k3lab.launch.job import job_environment
from k3lab.launch.single import split_resume
from k3lab.launch.stop import Stop
from k3lab.sweep.base import Sweeper, Trial
from k3lab.sweep.space import parse_space, with_arms
from k3lab.tracking import environment, names
from k3lab.tracking.local import read_summary, write_summary
from k3lab.tracking.run import Tracker
from k3lab.training.lock import RunLock, is_running, owner

REFRESH_S = 0.5
LEFTOVER_S = 60.0
SLOW_S = 20.0
ALL_LINES = 2**62  # a step past every line of metrics.jsonl


def run_sweep(overrides: list[str]) -> int:
    """Run every job that the overrides mean and print the sweep's folder as the last line.

    Returns 0 if the sweep did what was asked (a grid: all jobs finished; a search: all trials ended, one of them
    with a result), 1 if not, 130 or 143 after a signal. Raises UserError, before anything is started or written,
    if any job's configuration is wrong. ``resume=auto`` goes on with the newest such sweep that is not finished.
    """
    resume, rest = split_resume(overrides)
    if resume not in (None, "auto"):
        raise UserError(f"resume={resume}: names one run; with -m, resume=auto goes on with an unfinished sweep")
    arms = _load(parse_space(rest).first()).sweep.arms
    space = parse_space(with_arms(rest, arms))
    config = _load(space.first())
    sweeper: Sweeper = component("sweep", config.sweep.name)(config.sweep, config, space)
    _check_metric(sweeper.metric)
    configs = _check(sweeper.known())
    folder = find_sweep(config, sweeper, [c.fingerprint() for c in configs.values()]) if resume else None
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


def _check_metric(metric: str | None) -> None:
    """Refuse a misspelt metric of the families that have no names made up from layers."""
    known = [v for k, v in vars(names).items() if k.isupper() and isinstance(v, str) and "/" in v]
    if metric is not None and metric not in known and metric.split("/")[0] in ("train", "val"):
        raise UserError(f"sweep.metric={metric}: no such metric{nearest(metric, known)}")


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
        self.entries = self._restored(configs)
        self.board = Board(
            f"{folder}: {sweeper.describe()}", self.entries, sweeper.total(), sweeper.headline, sweeper.metric
        )
        self.tracker: Tracker | None = None
        self.stop = Stop(self.launcher)
        self.clerk = ThreadPoolExecutor(1, "clerk")  # the store takes seconds, which the loop does not have
        self.clerks: list[Future[None]] = []
        self.slow = False  # the store takes long

    def run(self) -> int:
        """Run what is left to run and return the exit code."""
        with self.stop:
            return self._run()

    def _run(self) -> int:
        self.sweeper.begin(self.folder)
        self._write("running")
        words = " ".join(mask(text) for text in self.overrides)
        self.tracker = Tracker.open(self.config, self.folder, run_id=self.run_id, params={"overrides": words})
        configs = [e.config for e in self.entries if e.config is not None] or [self.config]
        for line in dict.fromkeys(w for config in configs for w in config.warnings()):
            print(f"k3lab: warning: {line}", file=sys.stderr)
        status = "failed"
        try:
            self.run_id = self.tracker.run_id or self.run_id
            with self.board:
                self._loop()
            status = self._status()
        finally:
            self.launcher.kill()  # nothing is left to kill, unless the loop was left by an exception
            self.clerk.shutdown()
            self._write(status)
            self.tracker.finish(status)
        for future in self.clerks:
            future.result()
        if best := self.sweeper.headline():
            print(f"k3lab: {best}", file=sys.stderr, flush=True)
        return {"finished": 0, "failed": 1, "interrupted": self.stop.exit_code}[status]

    def _loop(self) -> None:
        running: dict[str, Entry] = {}
        while True:
            while self.launcher.free() > 0 and not self.stop.came and (trial := self.sweeper.ask()) is not None:
                entry = self._entry_of(trial)
                if entry.status in ("finished", "pruned"):  # in the sweep that this one goes on with
                    self.sweeper.tell(trial, entry.status, entry.metrics)
                elif entry.config is not None and self._start(entry):
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
                self._judge(entry)
            self.stop.patience()
            self.board.refresh()

    def _judge(self, entry: Entry) -> None:
        """End a running job that the search has given up, first by a signal that lets it save."""
        if entry.leave is not None:
            if time.monotonic() - entry.leave_at > self.stop.grace:
                self.launcher.kill(entry.job(self.run_id))
        elif (why := self.sweeper.watch(entry.trial, entry.validations())) is not None:
            entry.leave, entry.leave_at = why, time.monotonic()
            self.launcher.signal(signal.SIGTERM, entry.job(self.run_id))

    def _start(self, entry: Entry) -> bool:
        job = entry.job(self.run_id)
        entry.begin(self.sweeper.metric)
        while entry.again and is_running(entry.folder) and time.monotonic() - entry.began < LEFTOVER_S:
            time.sleep(REFRESH_S)  # the sweep was killed a moment ago, and its jobs are saving
        job.write()
        self._write("running")  # before it runs: a sweep that is killed now finds the job's folder again
        try:
            self.launcher.start(job, entry.config, job_environment(entry.config))
        except OSError as error:
            self._conclude(entry, "failed", f"the job could not be started: {error.strerror or error}", {})
            return False
        return True

    def _settle(self, entry: Entry) -> None:
        """Take a job's end from its summary; one that died before it could tell is recorded here."""
        entry.watch()
        summary = read_summary(entry.folder) or {}
        status = summary.get("status")
        if entry.leave is not None and entry.code != 0 and status != "failed":
            self._conclude(entry, "pruned", entry.leave, summary)
        elif status not in ENDED or (status == "finished") != (entry.code == 0):
            self._conclude(entry, "failed", _last_words(entry.folder, entry.code), summary)
        else:
            entry.adopt(summary)

    def _conclude(self, entry: Entry, status: str, error: str, summary: dict[str, Any]) -> None:
        """Record the end of a job that did not do so, or that does not know why it was ended."""
        entry.status, entry.error = status, error
        entry.run_id = summary.get("run_id") or entry.run_id
        begun = {"steps": entry.steps, "tokens": 0, "wall_s": round(entry.wall_s, 3), "metrics": entry.metrics}
        own = {"run_id": entry.run_id, "fingerprint": entry.fingerprint, "started": time.time() - entry.wall_s}
        own["environment"] = environment.describe()
        summary = {**begun, **own, **summary, "status": status, "error": error}
        with suppress(OSError):
            write_summary(entry.folder, summary)
        if self.run_id is not None:  # else the store does not answer the sweep either
            self.clerks.append(self.clerk.submit(self._tell_store, entry, summary))

    def _tell_store(self, entry: Entry, summary: dict[str, Any]) -> None:
        """Have the store know a job's end; that of a pruned one matters less than a sweep that ends in time."""
        if self.slow and summary["status"] == "pruned":
            return
        began = time.monotonic()
        with suppress(OSError, UserError):
            tracker = Tracker.open(entry.config, entry.folder, self.run_id, entry.run_id, start_step=ALL_LINES)
            with suppress(UserError):
                entry.run_id = tracker.run_id
            write_summary(entry.folder, {**summary, "run_id": entry.run_id})
            tracker.finish("failed" if summary["status"] == "failed" else "interrupted")
        self.slow = time.monotonic() - began > SLOW_S

    def _ended(self, entry: Entry) -> None:
        self.sweeper.tell(entry.trial, entry.status, entry.metrics)
        self.board.ended(entry)
        self.board.refresh(at_once=True)
        self._write("running")

    def _restored(self, configs: dict[int, Any]) -> list[Entry]:
        """Return the jobs that are known: all of a grid, those so far of a search that goes on."""
        before = [Entry.restore(record, self.folder) for record in self.before.get("jobs", [])]
        if not configs:
            return before
        old = {(e.trial.index, e.fingerprint): e for e in before}
        entries = []
        for trial in self.sweeper.known():
            config = configs[trial.index]
            entry = old.get((trial.index, config.fingerprint())) or self._new(trial)
            entry.trial = trial
            entry.load(config)
            if entry.status != "finished":  # a grid tries everything else again
                entry.status, entry.error = "waiting", None
            entries.append(entry)
        return entries

    def _entry_of(self, trial: Trial) -> Entry:
        """Return a trial's entry; a search decides as it goes, and may propose what is refused."""
        entry = next((e for e in self.entries if e.trial.index == trial.index), None)
        if entry is None:
            entry = self._new(trial)
            self.entries.append(entry)
        if entry.config is None and entry.status not in ("finished", "pruned"):
            entry.trial, before = trial, entry.fingerprint
            try:
                entry.load(_load(trial.overrides))
                if before not in ("", entry.fingerprint):  # defaults have changed: its checkpoint is another run's
                    entry.folder, entry.again = self._new(trial).folder, False
            except UserError as error:
                entry.status, entry.error = "failed", str(error)
        return entry

    def _new(self, trial: Trial) -> Entry:
        return Entry(trial, self.folder / f"{trial.index:03d}-{unique_id()}")

    def _status(self) -> str:
        if self.stop.came:
            return "interrupted"
        return self.sweeper.verdict([e.status for e in self.entries])

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
                **self.sweeper.summary(),
                "jobs": [entry.record() for entry in self.entries],
                "process": owner(),
            },
        )


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
