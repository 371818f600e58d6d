"""What a training that did not end well leaves: one line for the person, and files that explain it."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import torch
from torch import nn

from k3lab.tracking.local import write_json
from k3lab.training.checkpoint import complete, disk_refused
from k3lab.training.gradients import layer_statistics
from k3lab.training.module import NonFiniteError

FAILURE = "failure.json"
TRACEBACK = "traceback.txt"


def one_line(error: BaseException, step: int, folder: Path) -> str:
    """Return what went wrong after ``step`` optimizer steps, where to look and what can be done."""
    if isinstance(error, NonFiniteError):
        return f"{error}: stopped before that step; statistics of every layer are in {folder / FAILURE}"
    if isinstance(error, ValueError) and "NaN" in str(error):  # on a CPU routers refuse it before there is a loss
        return (
            f"not a number in step {step + 1} ({error}): stopped; statistics of every layer are in {folder / FAILURE}"
        )
    if disk_refused(error):
        assert isinstance(error, OSError)
        saved = complete(folder / "checkpoints")
        kept = f"the newest checkpoint is {saved[0].name}" if saved else "there is no checkpoint yet"
        return (
            f"cannot write {error.filename or folder}: {error.strerror}; {kept}; make room, then go on with "
            f"resume={folder}"
        )
    if isinstance(error, torch.OutOfMemoryError):
        return (
            f"the GPU's memory is exhausted after step {step}: raise trainer.accumulate or lower data.batch_size; "
            f"details in {folder / TRACEBACK}"
        )
    text = " ".join(str(error).split())
    short = text if len(text) <= 300 else text[:299] + "…"
    what = f"{type(error).__name__}: {short}" if short else type(error).__name__
    return f"training failed after step {step}: {what}; details in {folder / TRACEBACK}"


def write_reports(error: BaseException, step: int, folder: Path, model: nn.Module | None) -> None:
    """Write traceback.txt and, once there is a model, failure.json; a disk that refuses them is ignored."""
    try:
        text = "".join(traceback.format_exception(error))
        (folder / TRACEBACK).write_text(text, encoding="utf-8")
        if model is not None:
            write_json(folder / FAILURE, report(error, step, model))
    except OSError:
        pass


def report(error: BaseException, step: int, model: nn.Module) -> dict[str, Any]:
    """Return step, loss and gradient norm (null where unknown or not finite) and statistics of every layer."""
    found: dict[str, Any] = {
        "error": " ".join(f"{type(error).__name__}: {error}".split()),
        "step": error.step if isinstance(error, NonFiniteError) else step + 1,
        "loss": None,
        "grad_norm": None,
    }
    if isinstance(error, NonFiniteError):
        # As text: JSON has no NaN, and null would not tell it from an infinity.
        found |= {"loss": repr(error.loss), "grad_norm": repr(error.grad_norm)}
    try:
        found["layers"] = layer_statistics(model)
    except RuntimeError as second:  # a device that has failed cannot be read either
        found["layers"] = {}
        found["error"] += f"; no statistics: {type(second).__name__}"
    return found
