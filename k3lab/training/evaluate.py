"""Evaluation of a run's newest checkpoint on held-out data."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from k3lab.config.errors import UserError
from k3lab.config.registry import component
from k3lab.data.base import Batch, Source
from k3lab.data.loader import val_loader
from k3lab.diagnostics.study import Subject
from k3lab.model.build import build_model
from k3lab.model.language_model import LanguageModel
from k3lab.training import checkpoint
from k3lab.training.machine import autocast, device_of, prepare_source
from k3lab.training.state import load_weights
from k3lab.training.validation import validate


def evaluate(config: Any, folder: Path) -> dict[str, float]:
    """Return the validation metrics of the newest checkpoint in ``folder``, and its step.

    With diagnostics that are no schedule's, such as ``diagnostics=depth``, return those instead, and leave their
    figures and numbers in ``folder/figures``.
    """
    if not config.diagnostics.on_schedule:
        return study(config, folder)
    if config.trainer.val_batches == 0:
        raise UserError("trainer.val_batches=0: must be positive to evaluate")
    source = prepare_source(config)
    model, step = load_model(config, folder, source)
    found = validate(model, source, config, device_of(config), lambda: autocast(config))
    return {"step": step, **found}


def study(config: Any, folder: Path) -> dict[str, float]:
    """Return the metrics of ``config.diagnostics`` for the newest checkpoint, and its step; raises UserError."""
    source = prepare_source(config)
    model, step = load_model(config, folder, source)
    subject = Subject(
        model,
        HeldOut(source, config, device_of(config)),
        Path(folder),
        step,
        source.vocab_size,
        source.decode,
        lambda: autocast(config),
    )
    found = component("diagnostics", config.diagnostics.name)(config.diagnostics).run(subject)
    return {"step": step, **found}


class HeldOut:
    """The first ``diagnostics.batches`` validation batches on a device, as often as they are asked for."""

    def __init__(self, source: Source, config: Any, device: torch.device) -> None:
        self.source, self.config, self.device = source, config, device

    def __iter__(self) -> Iterator[Batch]:
        for batch in val_loader(self.source, self.config.data, self.config.diagnostics.batches):
            yield {name: tensor.to(self.device) for name, tensor in batch.items()}


def load_model(config: Any, folder: Path, source: Source) -> tuple[LanguageModel, int]:
    """Return the model of the newest usable checkpoint in evaluation mode, and its step; raises UserError."""
    where, skipped = checkpoint.newest(Path(folder) / "checkpoints")
    for line in skipped:
        print(f"k3lab: skipped: {line}", file=sys.stderr)
    if where is None:
        raise UserError(f"{folder} has no checkpoint yet")
    snapshot = checkpoint.read(where, parts=("model",))
    torch.manual_seed(config.seed)
    try:
        model = build_model(config, source.vocab_size)
    except ValueError as error:
        raise UserError(str(error)) from error
    load_weights(model, snapshot.model, where)
    return model.to(device_of(config)).eval(), snapshot.step
