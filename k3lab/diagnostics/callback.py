"""The callback that looks at a model on a schedule and hands what it finds to the tracker.

It measures before the first optimizer step, on the first micro-batch (load balance then is that of the probe),
and after every ``every``-th step (load balance then is that of the step's whole global batch).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import Tensor

from k3lab.diagnostics.decay import decay_metrics
from k3lab.diagnostics.depth import depth_metrics, source_metrics
from k3lab.diagnostics.load import LoadBalance
from k3lab.diagnostics.probe import Record, probe
from k3lab.diagnostics.settings import DiagnosticsSettings


class DiagnosticsCallback(Callback):
    """Logs load, depth and decay metrics.

    Of the training module it needs ``step`` (optimizer steps done), ``model`` (the language model, not
    compiled), ``last_counts`` (tokens an expert [L,E] of the last global batch, or None) and
    ``tracker.log(metrics, step)``.
    """

    def __init__(self, settings: DiagnosticsSettings) -> None:
        self.settings = settings
        self.step_before: int | None = None  # optimizer steps done when the current micro-batch began

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Measure the untrained model."""
        if pl_module.step == 0 and self.step_before is None:
            self._measure(trainer, pl_module, batch)
        self.step_before = pl_module.step

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: dict[str, Tensor], batch_idx: int
    ) -> None:
        """Measure when this micro-batch has completed a step that is due."""
        if pl_module.step != self.step_before and pl_module.step % self.settings.every == 0:
            self._measure(trainer, pl_module, batch)

    def _measure(self, trainer: Any, pl_module: Any, batch: dict[str, Tensor]) -> None:
        if not self.settings.enabled:
            return
        plugin = getattr(trainer, "precision_plugin", None)
        record = probe(
            pl_module.model,
            batch,
            self.settings.probe_sequences,
            self.settings.sample_tokens,
            plugin.forward_context if plugin is not None else nullcontext,
        )
        metrics = record_metrics(record, self.settings.max_source_weights)
        counts_LE = pl_module.last_counts if pl_module.step > 0 else None
        metrics |= balance_metrics(pl_module.model, record.counts, counts_LE)
        if pl_module.tracker is not None:
            pl_module.tracker.log(metrics, pl_module.step)


def record_metrics(record: Record, max_source_weights: int) -> dict[str, float]:
    """The depth and decay metrics of a probe."""
    return {
        **depth_metrics(record.mixtures, record.outputs, record.grads, record.sample),
        **source_metrics(record.weights, max_source_weights),
        **decay_metrics(record.log_decays),
    }


def balance_metrics(model: Any, probed: Mapping[int, Tensor], counts_LE: Tensor | None) -> dict[str, float]:
    """The balance metrics of global counts [L,E], or else of the probe's own {decoder layer: counts [E]}."""
    if not probed:
        return {}
    layers = sorted(probed)
    router = model.routers[0]
    metric = LoadBalance(layers, router.experts, router.top_k, sync_on_compute=False)
    metric.update((torch.stack([probed[i] for i in layers]) if counts_LE is None else counts_LE).cpu())
    return metric.compute()
