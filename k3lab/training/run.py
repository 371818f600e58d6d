"""The life of one run, from its folder to its exit code."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer

from k3lab.config.errors import UserError
from k3lab.config.registry import component
from k3lab.data.base import Source
from k3lab.data.loader import train_loader
from k3lab.diagnostics.callback import DiagnosticsCallback
from k3lab.model.build import build_model
from k3lab.tracking import environment
from k3lab.tracking.local import read_summary, write_summary
from k3lab.tracking.run import Tracker
from k3lab.training import checkpoint, failure
from k3lab.training.callbacks import AfterStep, BeforeStep, Clock
from k3lab.training.display import Display
from k3lab.training.lock import RunLock, owner
from k3lab.training.machine import (
    accelerator,
    deterministic,
    device_name,
    device_of,
    precision,
    prepare_source,
    quiet,
    require_memory,
)
from k3lab.training.metrics import MetricLog, Speed
from k3lab.training.module import TrainingModule
from k3lab.training.signals import Aborted, Signals


def run_training(config: Any, folder: Path, parent_run_id: str | None = None, resume: bool = False) -> int:
    """Train in ``folder`` and return the exit code: 0 done, 1 failure, 130 or 143 interrupted.

    ``resume`` goes on from the folder's newest usable checkpoint. Mistakes of the user raise UserError; a
    new run refused before it began leaves nothing behind.
    """
    folder = Path(folder)
    if resume and (done := _finished(config, folder)):
        _say(done)
        return 0
    if not config.diagnostics.on_schedule:
        name = config.diagnostics.name
        raise UserError(
            f"diagnostics={name}: looks at a checkpoint, with k3lab eval run=FOLDER diagnostics={name}; allowed in "
            "training: cheap, off"
        )
    accelerator(config)
    source = None
    if not (folder / "summary.json").exists():
        source = prepare_source(config)
        require_memory(config, source.vocab_size)
    _make_writable(folder)
    with Signals() as signals, RunLock(folder):
        try:
            return _Run(config, folder, parent_run_id, resume, signals, source).execute()
        except Aborted:
            return signals.exit_code


class _Run:
    """One process of a run: what it holds, what it does, what it leaves."""

    def __init__(
        self, config: Any, folder: Path, parent: str | None, resume: bool, signals: Signals, source: Source | None
    ) -> None:
        self.config, self.folder, self.parent, self.resume = config, folder, parent, resume
        self.signals, self.source = signals, source
        self.clock = Clock()
        self.tracker: Any = None
        self.log = MetricLog()
        self.module: TrainingModule | None = None
        trainer = config.trainer
        self.diagnostics = DiagnosticsCallback(config.diagnostics, trainer.log_every, trainer.max_steps)
        self.start_step = 0
        self.previous = previous = (read_summary(folder) or {}) if resume else {}
        self.run_id: str | None = previous.get("run_id")
        self.started = previous.get("started") or time.time()
        self.clock.before = float(previous.get("wall_s") or 0.0)
        self.environment = {**environment.describe(), "device": device_name(device_of(config))}
        self.snapshot: checkpoint.Snapshot | None = None
        self._sizes: dict[str, int] = {}  # parameters and FLOPs of the model

    @property
    def step(self) -> int:
        return self.module.step if self.module is not None else self.start_step

    def execute(self) -> int:
        """Train, and turn whatever happens into a status, a line and an exit code."""
        try:
            self._write("running")
            self._prepare_and_fit()
        except UserError as error:
            if self.previous and self.step == self.start_step:
                self._leave_as_it_was()
            else:
                self._end("failed", " ".join(str(error).split()))
            raise
        except Aborted:
            self._end("interrupted", figures=False)
            _say(f"aborted after step {self.step}; {self._how_to_go_on()}")
            return self.signals.exit_code
        except BaseException as error:
            if self.signals.received is not None and isinstance(error, (SystemExit, KeyboardInterrupt)):
                self._end("interrupted")
                return self.signals.exit_code
            failure.write_reports(error, self.step, self.folder, self.module.model if self.module else None)
            line = failure.one_line(error, self.step, self.folder)
            self._end("failed", line)
            _say(line)
            return 1
        if self.step < self.config.trainer.max_steps:
            assert self.signals.received is not None, "training stopped before its last step"
            self._end("interrupted")
            _say(f"interrupted after step {self.step}; {self._how_to_go_on()}")
            return self.signals.exit_code
        self._end("finished")
        return 0

    # ---- the parts of a run -----------------------------------------------------------------------------

    def _prepare_and_fit(self) -> None:
        config = self.config
        where = self._go_on() if self.resume else None
        _write_config(config, self.folder)
        self.tracker = Tracker.open(config, self.folder, self.parent, self.run_id, self.start_step)
        latest = self.snapshot.state["latest"] if self.snapshot is not None else None
        self.log = MetricLog(self.tracker, latest)
        self.source = self.source or prepare_source(config)
        if self.start_step < config.trainer.max_steps:  # else it was killed between its last checkpoint and its end
            self._fit(self.source, where)

    def _go_on(self) -> Path | None:
        """Read the newest checkpoint and check that it can be gone on with; raises UserError."""
        where = self._read_newest()
        if self.snapshot is None:
            return None
        state, max_steps = self.snapshot.state, self.config.trainer.max_steps
        self.start_step = self.snapshot.step
        self.run_id = state["run_id"] or self.run_id
        self.clock.before = state["wall_s"]
        if self.start_step > max_steps:
            raise UserError(
                f"trainer.max_steps={max_steps}: must be at least {self.start_step}, the steps that the run has done"
            )
        self.source = prepare_source(self.config)
        if state["data"] != self.source.fingerprint():
            raise UserError(
                f"the files of data={self.config.data.name} have changed since {where}: the run cannot go on with them"
            )
        return where

    def _read_newest(self) -> Path | None:
        where, skipped = checkpoint.newest(self.folder / "checkpoints")
        for line in skipped:
            _say(f"skipped: {line}")
        if where is None:
            _say(f"{self.folder} has no checkpoint yet: the run begins again")
        else:
            self.snapshot = checkpoint.read(where)
        return where

    def _fit(self, source: Source, where: Path | None) -> None:
        config, settings = self.config, self.config.trainer
        strategy = component("strategy", config.strategy.name)(config.strategy)
        torch.manual_seed(config.seed)
        model = _user_errors(build_model, config, source.vocab_size)
        schedule = component("schedule", config.schedule.name)(config.schedule)
        optimizer = component("optim", config.optim.name)
        module = TrainingModule(
            config,
            model,
            source,
            lambda m: optimizer.build(config.optim, m),
            schedule.factor,
            self.log,
            strategy.group,
        )
        module.step = self.start_step
        self.module = module
        audit = model.audit(config.data.seq_len)
        self._sizes = {k: audit[k] for k in ("total_params", "active_params", "flops_per_token")}
        device = device_of(config)
        display = Display(
            self._title(audit["total_params"], device),
            settings.max_steps,
            self.start_step,
            settings.log_every,
            source.bytes_per_token,
            settings.display,
        )
        tokens_per_step = config.data.batch_size * config.data.seq_len
        speed = Speed(tokens_per_step, audit["flops_per_token"], device, strategy.world)
        before = BeforeStep(self.log, speed, self.signals, config.seed, settings, self.snapshot, where)
        self.snapshot = None  # the callback lets go of it, and of its memory, when it has been put in place
        after = AfterStep(
            config, self.folder, self.log, self.signals, display, self._state, lambda: self._write("running")
        )
        loader = train_loader(
            source,
            config.data,
            self.start_step,
            settings.max_steps,
            settings.accumulate,
            strategy.rank,
            strategy.world,
            settings.workers,
        )
        if self.start_step == 0 and (constants := source.constants()):
            self.log.log(constants, 0)
        _ = self.tracker.run_id  # waits for the store, which was opened while the model was built
        self._write("running")
        with display, quiet(), deterministic(settings.deterministic):
            for line in source.notes:
                display.note(line)
            trainer = Trainer(
                **strategy.trainer_kwargs(accelerator(config)),
                precision=precision(config),  # type: ignore[arg-type]
                max_steps=settings.max_steps - self.start_step,
                max_epochs=1,
                accumulate_grad_batches=settings.accumulate,
                callbacks=[before, self.diagnostics, after],
                default_root_dir=self.folder,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                use_distributed_sampler=False,
                limit_val_batches=0,
                num_sanity_val_steps=0,
                inference_mode=False,
            )
            trainer.fit(module, loader)

    def _state(self) -> dict[str, Any]:
        return {
            "run_id": self._run_id(),
            "fingerprint": self.config.fingerprint(),
            "data": self.source.fingerprint() if self.source is not None else "",
            "wall_s": self.clock.seconds,
            "latest": self.log.latest,
        }

    def _title(self, parameters: int, device: torch.device) -> str:
        millions = f"{parameters / 1e6:.2f} M parameters"
        where = f"{self.environment['device']}, {'bf16' if 'bf16' in precision(self.config) else 'fp32'}"
        begin = f" from step {self.start_step}" if self.start_step else ""
        return f"{self.folder}: {millions} on {where}, {self.config.trainer.max_steps} steps{begin}"

    # ---- what is left behind ----------------------------------------------------------------------------

    def _run_id(self) -> str | None:
        """Return the run's id in the store; it appears late if the store was not there at first."""
        if self.module is not None and self.tracker is not None:
            self.run_id = self.tracker.run_id or self.run_id
        return self.run_id

    def _summary(self, status: str, error: str | None = None) -> dict[str, Any]:
        summary = {
            "status": status,
            "run_id": self._run_id(),
            "steps": self.step,
            "max_steps": self.config.trainer.max_steps,
            "tokens": self.step * self.config.data.batch_size * self.config.data.seq_len,
            "wall_s": round(self.clock.seconds, 3),
            "started": self.started,
            "metrics": dict(self.log.latest),
            "environment": self.environment,
            "fingerprint": self.config.fingerprint(),
            "data": self.source.fingerprint() if self.source is not None else None,
            **self._sizes,
            "process": owner(),
        }
        return summary if error is None else {**summary, "error": error}

    def _write(self, status: str) -> None:
        write_summary(self.folder, self._summary(status))

    def _end(self, status: str, error: str | None = None, figures: bool = True) -> None:
        """Write the last summary, draw, and close the tracker, which copies the summary to the store."""
        try:
            write_summary(self.folder, self._summary(status, error))
        except OSError as refused:
            _say(f"cannot write {self.folder / 'summary.json'}: {refused.strerror}")
        if self.tracker is not None:
            if figures and self.step > 0:
                self._draw()
            self.tracker.finish(status)

    def _draw(self) -> None:
        """Draw the run's figures and copy them to the store; they never change how a run ends."""
        if not (self.config.diagnostics.enabled and self.config.diagnostics.figures):
            return
        try:
            from k3lab.diagnostics.draw import FIGURES, draw_run  # imports matplotlib, which takes a second

            if draw_run(self.folder, self.diagnostics.snapshot):
                self.tracker.artifact(self.folder / FIGURES, FIGURES)
        except (Exception, Aborted) as error:
            _say(f"some figures could not be drawn: {type(error).__name__}: {error}")

    def _leave_as_it_was(self) -> None:
        """Nothing has been trained: whoever asked made a mistake, and the run must not look failed for it."""
        write_summary(self.folder, self.previous)
        if self.tracker is not None:
            status = self.previous.get("status")
            self.tracker.finish(status if status in ("finished", "failed") else "interrupted")

    def _how_to_go_on(self) -> str:
        saved = checkpoint.complete(self.folder / "checkpoints")
        return f"{saved[0].name} is saved; go on with resume={self.folder}" if saved else "nothing was saved"


def _finished(config: Any, folder: Path) -> str | None:
    summary = read_summary(folder) or {}
    if summary.get("status") != "finished" or config.trainer.max_steps > summary.get("steps", 0):
        return None
    return f"{folder} is finished after {summary['steps']} steps: nothing to train; raise trainer.max_steps to go on"


def _make_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".tmp-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise UserError(f"paths.output: cannot write to {folder}: {error.strerror}") from error


def _write_config(config: Any, folder: Path) -> None:
    file = folder / "config.yaml"
    text = config.to_yaml()
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        draft = folder / ".tmp-config.yaml"
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)


def _user_errors(call: Any, *arguments: Any) -> Any:
    """Call a constructor whose ValueErrors tell the user of a wrong setting."""
    try:
        return call(*arguments)
    except ValueError as error:
        raise UserError(str(error)) from error


def _say(line: str) -> None:
    print(f"k3lab: {line}", file=sys.stderr, flush=True)
