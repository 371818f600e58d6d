"""What a process trains on: data, device, precision, deterministic algorithms, and fewer warnings."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import psutil
import torch

from k3lab.config.errors import UserError
from k3lab.config.registry import component
from k3lab.data.base import Source
from k3lab.model.audit import count, meta_model


def accelerator(config: Any) -> str:
    """Return ``gpu`` or ``cpu``; raises UserError if a GPU is asked for and none is there."""
    wanted = config.trainer.accelerator
    if wanted == "gpu" and not torch.cuda.is_available():
        raise UserError("trainer.accelerator=gpu: this machine has no CUDA device; allowed: auto, cpu")
    return "gpu" if wanted != "cpu" and torch.cuda.is_available() else "cpu"


def precision(config: Any) -> str:
    """Return Lightning's name of the precision: bf16 is autocast over fp32 weights."""
    wanted = config.trainer.precision
    if wanted == "auto":
        wanted = "bf16" if accelerator(config) == "gpu" else "fp32"
    return "bf16-mixed" if wanted == "bf16" else "32-true"


def prepare_source(config: Any) -> Source:
    """Return the data source, read and checked; raises UserError for unusable data."""
    source = component("data", config.data.name)(config.data, config.seed)
    source.prepare()
    return source


def require_memory(config: Any, vocab_size: int) -> None:
    """Raise UserError if the training cannot fit: the system would kill it, or others, after minutes of swapping.

    Counted is what no training does without: weights, gradients and one state of the optimizer in fp32, the
    tokens and targets of a micro-batch and its logits.
    """
    try:
        weights = count(meta_model(config, vocab_size))
    except ValueError as error:
        raise UserError(str(error)) from error
    devices, vocab = config.trainer.devices, config.model.vocab_size or vocab_size
    tokens = config.data.batch_size * config.data.seq_len // config.trainer.accumulate
    need = {
        f"the model's {weights:,} parameters": 12 * weights,
        f"a micro-batch of {tokens:,} tokens": tokens * (16 + 4 * vocab),
    }
    if accelerator(config) == "gpu":
        have, where = devices * torch.cuda.get_device_properties(0).total_memory, "the GPU memory asked for"
    else:
        have, where = psutil.virtual_memory().total + psutil.swap_memory().total, "this machine"
    for what, size in need.items():
        if size > have:
            raise UserError(
                f"{what} need at least {size / 2**30:,.0f} GiB, {where} has {have / 2**30:,.0f}: choose a "
                "smaller model, data.batch_size or data.seq_len, or more trainer.accumulate"
            )


def device_of(config: Any) -> torch.device:
    """Return the device that ``trainer.accelerator`` means on this machine."""
    return torch.device("cuda" if accelerator(config) == "gpu" else "cpu")


def autocast(config: Any) -> AbstractContextManager[Any]:
    """Return the precision's context for a forward pass outside a Trainer."""
    if precision(config) == "32-true":
        return nullcontext()
    return torch.autocast(device_of(config).type, dtype=torch.bfloat16, cache_enabled=False)


def device_name(device: torch.device) -> str:
    """Return a GPU's product name, or ``cpu``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what Lightning and torch say about choices that are made on purpose here."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric", "lightning")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\..*")
        warnings.filterwarnings("ignore", message="This DataLoader will create")  # said by trainer.workers itself
        warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation.*")
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Let torch choose deterministic algorithms where it has them, for the time of a ``with`` block."""
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is not deterministic without
        torch.use_deterministic_algorithms(True, warn_only=True)
        # This one finds bugs, and costs time.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
