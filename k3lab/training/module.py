"""The one LightningModule: a global batch's loss, its optimizer step, and what both leave to be logged.

A global batch is ``data.batch_size`` sequences, cut into ``trainer.accumulate`` micro-batches on each device.
Its loss is the mean over all its targets, so how it is cut changes nothing but rounding.

B sequences of a micro-batch, T tokens of a sequence, V vocabulary, L routers, E experts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor

from k3lab.data.base import NO_TARGET, Batch, Source
from k3lab.model.language_model import LanguageModel
from k3lab.router.base import end_of_global_batch
from k3lab.training.gradients import clip_to, total_norm


class NonFiniteError(Exception):
    """Loss or gradients of a global batch are not finite; raised before the optimizer's step."""

    def __init__(self, step: int, loss: float, grad_norm: float) -> None:
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient's norm is {grad_norm}"
        super().__init__(f"{what} at step {step}")
        self.step, self.loss, self.grad_norm = step, loss, grad_norm


@dataclass(frozen=True)
class StepResult:
    """Figures of one optimizer step."""

    loss: float  # cross-entropy in nats, mean over the targets of the global batch
    aux_loss: float  # sum of the routers' auxiliary losses, mean over its tokens; 0 without any
    grad_norm: float  # of all gradients together, before clipping
    lr: float  # of the first parameter group


class TrainingModule(LightningModule):
    """Trains a language model on a source.

    ``step`` counts optimizer steps over the whole life of the run, whatever Lightning counts in this process.
    ``last`` and ``last_counts`` ([L,E] int64, None without routers) describe the last one done; ``tracker`` has
    ``log(metrics, step)``. ``model`` is never compiled; ``forward`` runs the compiled one if there is one.
    """

    def __init__(
        self,
        config: Any,
        model: LanguageModel,
        source: Source,
        build_optimizer: Callable[[LanguageModel], torch.optim.Optimizer],
        lr_factor: Callable[[int, int], float],
        tracker: Any = None,
        group: Any = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.model = model
        self.source = source
        self.build_optimizer = build_optimizer
        self.lr_factor = lr_factor
        self.tracker = tracker
        self.group = group
        self.step = 0
        self.accumulate: int = config.trainer.accumulate
        self.last: StepResult | None = None
        self.last_counts: Tensor | None = None
        # In a tuple, or it would be registered as a second submodule and double every name in a state dict.
        self._compiled = (torch.compile(model, dynamic=False),) if config.trainer.compile else (model,)
        self._base_lrs: list[float] = []
        self._loss_sum: Tensor | None = None
        self._aux_sum: Tensor | None = None
        self._counts: list[Tensor] = []
        self._norm: Tensor | None = None

    @property
    def tokens(self) -> int:
        """Return the tokens seen: steps × sequences × their length."""
        return self.step * self.config.data.batch_size * self.config.data.seq_len

    def forward(self, tokens_BT: Tensor, mask_BT: Tensor | None = None, documents_BT: Tensor | None = None) -> Any:
        """Return the model's output for a micro-batch: logits [B,T,V] and routings."""
        return self._compiled[0](tokens_BT, mask_BT, documents_BT=documents_BT)

    # ---- one micro-batch --------------------------------------------------------------------------------

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the micro-batch's part of the global batch's loss, times ``accumulate``."""
        output = self(batch["tokens"], batch.get("mask"), batch.get("documents"))
        targets = max(1, self.source.targets_in_step(self.step))
        loss = cross_entropy_sum(output.logits_BTV, batch["targets"]) / targets
        # Each auxiliary loss is a mean over its micro-batch's real tokens: weighted by those it makes the global mean.
        share = self._share(batch)
        extra = [r.aux_loss * share for r in output.routings if r.aux_loss is not None]
        aux = torch.stack(extra).sum() if extra else torch.zeros_like(loss)
        for router, routing in zip(self.model.routers, output.routings, strict=True):
            router.count(routing)
        self._add(batch_idx, loss.detach(), aux.detach(), [r.counts_E for r in output.routings])
        # Lightning divides by `accumulate`; this loss has its share of the global batch already.
        return (loss + aux) * self.accumulate

    def _share(self, batch: Batch) -> Tensor | float:
        """Return the micro-batch's share of the real tokens of the global batch."""
        mask_BT = batch.get("mask")
        tokens = batch["tokens"].numel() if mask_BT is None else mask_BT.sum()
        return tokens / max(1, self.source.tokens_in_step(self.step))

    def _add(self, batch_idx: int, loss: Tensor, aux: Tensor, counts: list[Tensor]) -> None:
        if batch_idx % self.accumulate == 0:
            self._loss_sum, self._aux_sum, self._counts = loss, aux, counts
        else:
            assert self._loss_sum is not None
            assert self._aux_sum is not None
            self._loss_sum = self._loss_sum + loss
            self._aux_sum = self._aux_sum + aux
            self._counts = [old + new for old, new in zip(self._counts, counts, strict=True)]

    # ---- one optimizer step -----------------------------------------------------------------------------

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer, and remember the rates that the schedule scales."""
        optimizer = self.build_optimizer(self.model)
        self._base_lrs = [float(group["lr"]) for group in optimizer.param_groups]
        return optimizer

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        """Set the step's learning rate, run its last micro-batch and step, and count it."""
        factor = self.lr_factor(self.step, self.config.trainer.max_steps)
        for group, base in zip(self.trainer.optimizers[0].param_groups, self._base_lrs, strict=True):
            group["lr"] = base * factor
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        self.step += 1

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Refuse a non-finite step, then move the routers' biases: all gradients are there, no weight has moved.

        A pre-hook of the optimizer would come too early, since its step runs the last micro-batch inside.
        """
        assert self._loss_sum is not None
        assert self._aux_sum is not None
        self._norm = total_norm(self.model.parameters())
        figures = torch.stack([v.double() for v in (self._loss_sum, self._aux_sum, self._norm.to(self.device))])
        loss, aux, norm = figures.tolist()  # the one time in a step that the host waits for the device
        if not math.isfinite(loss + aux) or not math.isfinite(norm):
            raise NonFiniteError(self.step + 1, loss + aux, norm)
        end_of_global_batch(self.model.routers, self.group)
        self.last = StepResult(loss, aux, norm, float(self.trainer.optimizers[0].param_groups[0]["lr"]))
        self.last_counts = stack_counts(self._counts)

    def configure_gradient_clipping(self, *_: Any, **__: Any) -> None:
        """Clip by the norm already computed. Lightning's own clipping refuses fused optimizers under autocast."""
        if self.config.trainer.clip is not None:
            assert self._norm is not None
            clip_to(self.model.parameters(), self._norm, self.config.trainer.clip)


def cross_entropy_sum(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Return the summed cross-entropy in nats over the positions that have a target, in fp32 or wider."""
    logits = logits_BTV.flatten(0, 1)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(wide, targets_BT.flatten(), ignore_index=NO_TARGET, reduction="sum")


def stack_counts(counts: Iterable[Tensor]) -> Tensor | None:
    """Return tokens an expert as [L,E], or None where there is no router."""
    found = list(counts)
    return torch.stack(found) if found else None
