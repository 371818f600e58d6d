"""Evaluation of a run's newest checkpoint on held-out data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from k3lab.config.errors import UserError
from k3lab.data.base import Source
from k3lab.model.build import build_model
from k3lab.model.language_model import LanguageModel
from k3lab.training import checkpoint
from k3lab.training.machine import autocast, device_of, prepare_source
from k3lab.training.state import load_weights
from k3lab.training.validation import validate


def evaluate(config: Any, folder: Path) -> dict[str, float]:
    """Return the validation metrics of the newest checkpoint in ``folder``, and its step."""
    if config.trainer.val_batches == 0:
        raise UserError("trainer.val_batches=0: must be positive to evaluate")
    source = prepare_source(config)
    model, step = load_model(config, folder, source)
    found = validate(model, source, config, device_of(config), lambda: autocast(config))
    return {"step": step, **found}


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
