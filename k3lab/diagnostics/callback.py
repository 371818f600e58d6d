"""The callback that looks at a model on a schedule and hands what it finds to the tracker.

It measures before the first optimizer step, on the first micro-batch (load balance then is that of the probe),
after every ``every``-th step and after the last one (load balance then is that of the step's whole global
batch). Load balance alone, which costs no pass through the model, is logged every ``log_every`` steps.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import Tensor

from k3lab.diagnostics.balance_metrics import balance_metrics, bias_metrics, biases_of
from k3lab.diagnostics.decay_metrics import decay_metrics
from k3lab.diagnostics.depth_metrics import depth_metrics, source_metrics
from k3lab.diagnostics.probe import Record, probe
from k3lab.diagnostics.settings import DiagnosticsSettings
from k3lab.diagnostics.snapshot import Snapshot, take


class DiagnosticsCallback(Callback):
    """Logs load, depth and decay metrics.

    Of the training module it needs ``step`` (optimizer steps done), ``model`` (the language model, not
    compiled), ``last_counts`` (tokens an expert [L,E] of the last global batch, or None) and
    ``tracker.log(metrics, step)``. ``snapshot`` is the last measurement, None before the first.
    """

    def __init__(
        self, settings: DiagnosticsSettings, log_every: int | None = None, max_steps: int | None = None
    ) -> None:
        self.settings = settings
        self.log_every = log_every
        self.max_steps = max_steps
        self.snapshot: Snapshot | None = None
        self.step_before: int | None = None  # optimizer steps done when the current micro-batch began

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Measure the untrained model."""
        if pl_module.step == 0 and self.step_before is None and self.settings.enabled:
            self._measure(trainer, pl_module, batch)
        self.step_before = pl_module.step

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: dict[str, Tensor], batch_idx: int
    ) -> None:
        """Measure or look at the load when this micro-batch has completed a step for which that is due."""
        step = pl_module.step
        if step == self.step_before or not self.settings.enabled:
            return
        every = self.settings.steps_between(pl_module.model.embedding.weight.device.type)
        if step % every == 0 or step == self.max_steps:
            self._measure(trainer, pl_module, batch)
        elif self.log_every is not None and step % self.log_every == 0:
            self._log(pl_module, balance_metrics(pl_module.model, pl_module.last_counts))

    def _measure(self, trainer: Any, pl_module: Any, batch: dict[str, Tensor]) -> None:
        plugin = getattr(trainer, "precision_plugin", None)
        model = pl_module.model
        record = probe(
            model,
            batch,
            self.settings.probe_sequences,
            self.settings.sample_tokens,
            plugin.forward_context if plugin is not None else nullcontext,
        )
        metrics = record_metrics(record, self.settings.max_source_weights)
        counts_LE = pl_module.last_counts if pl_module.step > 0 else probed_counts(record)
        metrics |= balance_metrics(model, counts_LE) | bias_metrics(biases_of(model))
        self._log(pl_module, metrics)
        self.snapshot = take(pl_module.step, batch, model, record)

    def _log(self, pl_module: Any, metrics: dict[str, float]) -> None:
        if metrics and pl_module.tracker is not None:
            pl_module.tracker.log(metrics, pl_module.step)


def record_metrics(record: Record, max_source_weights: int) -> dict[str, float]:
    """The depth and decay metrics of a probe."""
    return {
        **depth_metrics(record.mixtures, record.outputs, record.grads, record.sample),
        **source_metrics(record.weights, max_source_weights),
        **decay_metrics(record.log_decays),
    }


def probed_counts(record: Record) -> Tensor | None:
    """The probe's own tokens an expert [L,E], None without routers."""
    return torch.stack([record.counts[i] for i in sorted(record.counts)]) if record.counts else None
