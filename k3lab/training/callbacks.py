"""What happens around an optimizer step, in one order: log, look inside, validate, save, stop.

Everything that belongs to a step is logged before the checkpoint of that step, so a run that goes on from the
checkpoint neither repeats nor misses a value. `BeforeStep` comes first in the Trainer's list of callbacks and
`AfterStep` last; callbacks between them see the step's metrics and may add to them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback

from k3lab.tracking import names
from k3lab.training import checkpoint
from k3lab.training.display import Display
from k3lab.training.metrics import MetricLog, Speed
from k3lab.training.signals import Signals
from k3lab.training.state import capture, restore
from k3lab.training.validation import validate


class BeforeStep(Callback):
    """Puts a checkpoint's state in place, keeps time, and logs what an optimizer step left."""

    def __init__(
        self,
        log: MetricLog,
        speed: Speed,
        signals: Signals,
        seed: int,
        settings: Any,
        snapshot: checkpoint.Snapshot | None = None,
        where: Path | None = None,
    ) -> None:
        self.metrics = log  # not `log`: Lightning overwrites that attribute of a callback
        self.speed = speed
        self.signals = signals
        self.seed = seed
        self.log_every, self.max_steps = settings.log_every, settings.max_steps
        self.snapshot = snapshot
        self.where = where

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Restore or seed, as the last thing before the first batch."""
        self.signals.install()  # Lightning has just set a handler that would stop in mid-step
        if self.snapshot is None:
            # Not where building the model left the generator: two models then draw the same dropout masks.
            torch.manual_seed(self.seed + 1)
        else:
            assert self.where is not None
            restore(pl_module.model, trainer.optimizers[0], self.snapshot, self.where)
            pl_module.step = self.snapshot.step
            self.snapshot = None  # frees its memory

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Note that a step begins with its first micro-batch."""
        if batch_idx % pl_module.accumulate == 0:
            self.speed.start()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the step that this micro-batch completed."""
        if (batch_idx + 1) % pl_module.accumulate:
            return
        self.speed.stop()
        last = pl_module.last
        metrics = {
            names.TRAIN_LOSS: last.loss,
            names.TRAIN_GRAD_NORM: last.grad_norm,
            names.TRAIN_LR: last.lr,
        }
        if last.aux_loss:
            metrics[names.TRAIN_AUX_LOSS] = last.aux_loss
        if pl_module.step % self.log_every == 0 or pl_module.step == self.max_steps:
            metrics |= self.speed.metrics()
        self.metrics.log(metrics, pl_module.step)


class AfterStep(Callback):
    """Validates, shows, saves and stops at the end of an optimizer step."""

    def __init__(
        self,
        config: Any,
        folder: Path,
        log: MetricLog,
        signals: Signals,
        display: Display,
        state: Callable[[], dict[str, Any]],
        on_saved: Callable[[], None],
    ) -> None:
        self.config = config
        self.checkpoints = folder / "checkpoints"
        self.metrics = log  # not `log`: Lightning overwrites that attribute of a callback
        self.signals = signals
        self.display = display
        self.state = state  # what a checkpoint holds besides tensors
        self.on_saved = on_saved

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Stop here if a signal came while everything was being set up."""
        self.display.start()
        if self.signals.received is not None:
            self._stop(trainer, pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Do what is due after the step that this micro-batch completed."""
        if (batch_idx + 1) % pl_module.accumulate:
            return
        step, settings = pl_module.step, self.config.trainer
        at_end = step >= settings.max_steps
        if at_end or (settings.val_every and step % settings.val_every == 0):
            self._validate(trainer, pl_module)
        self.display.update(step, self.metrics.latest)
        if self.signals.received is not None and not at_end:
            self._stop(trainer, pl_module)
        elif at_end or step % self.config.checkpoint.every == 0:
            self._save(trainer, pl_module)

    def _validate(self, trainer: Any, pl_module: Any) -> None:
        found = validate(
            pl_module.model,
            pl_module.source,
            self.config,
            pl_module.device,
            trainer.precision_plugin.forward_context,
        )
        self.metrics.log(found, pl_module.step)

    def _stop(self, trainer: Any, pl_module: Any) -> None:
        self._save(trainer, pl_module)
        trainer.should_stop = True

    def _save(self, trainer: Any, pl_module: Any) -> None:
        if self.metrics.tracker is not None:
            self.metrics.tracker.flush()
        snapshot = capture(pl_module.step, pl_module.model, trainer.optimizers[0], self.state())
        checkpoint.write(self.checkpoints, snapshot, self.config.checkpoint.keep)
        self.on_saved()


class Clock:
    """Wall time of a run over all the processes that it took."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.before = 0.0  # seconds of earlier processes

    @property
    def seconds(self) -> float:
        """Return the seconds so far."""
        return self.before + time.monotonic() - self._began
