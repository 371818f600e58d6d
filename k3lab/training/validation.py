"""Validation: sums over tokens, so that how the set is cut into batches never changes the result."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from k3lab.data.base import NO_TARGET, Source
from k3lab.data.loader import val_loader
from k3lab.tracking import names
from k3lab.training.module import cross_entropy_sum


def validate(
    model: torch.nn.Module,
    source: Source,
    config: Any,
    device: torch.device,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> dict[str, float]:
    """Return loss, bits a byte (where bytes have a meaning) and accuracy over ``trainer.val_batches`` batches.

    The model runs as it is, never compiled: an evaluation afterwards gives the same bits, and no second graph is
    compiled for evaluation mode. Routers count nothing in that mode, and the random generators and the training
    flag are as before.
    """
    batches = config.trainer.val_batches
    if not batches or source.val_batches_available() == 0:
        return {}
    sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, right answers, targets
    was_training = model.training
    model.eval()
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.no_grad(), torch.random.fork_rng(devices):
            for batch in val_loader(source, config.data, batches, config.trainer.accumulate):
                moved = {k: v.to(device, non_blocking=True) for k, v in batch.items()}
                with context():
                    output = model(moved["tokens"], moved.get("mask"), documents_BT=moved.get("documents"))
                    sums += _sums(output.logits_BTV, moved["targets"])
    finally:
        model.train(was_training)
    loss, right, targets = sums.tolist()
    return metrics(loss, right, targets, source.bytes_per_token)


def metrics(loss_sum: float, right: float, targets: float, bytes_per_token: float | None) -> dict[str, float]:
    """Return the validation metrics of sums over ``targets`` tokens, by name."""
    if not targets:
        return {}
    loss = loss_sum / targets
    found = {names.VAL_LOSS: loss, names.VAL_ACCURACY: right / targets}
    if bytes_per_token is not None:
        found[names.VAL_BITS_PER_BYTE] = loss / math.log(2) / bytes_per_token
    return found


def _sums(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    real = targets_BT != NO_TARGET
    right = (logits_BTV.argmax(-1) == targets_BT) & real
    loss = cross_entropy_sum(logits_BTV, targets_BT).double()
    return torch.stack([loss, right.sum().double(), real.sum().double()])
