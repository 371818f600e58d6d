"""From a source to a torch DataLoader: one item is one micro-batch of one rank.

Item i belongs to optimizer step i // accumulate, whatever the worker that fetches it, so a run
that starts at step s reads exactly what an uninterrupted run would have read from there on.
"""

from __future__ import annotations

import os
import signal
import threading
import warnings
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from k3lab.data.base import Batch, Source


class StepDataset(Dataset):
    """Micro-batches of one rank, indexed from step 0 (or from validation batch 0).

    ValueError when the global batch does not divide into world × accumulate equal parts.
    """

    def __init__(
        self, source: Source, batch_size: int, accumulate: int, rank: int, world: int, train: bool = True
    ) -> None:
        if batch_size % (world * accumulate):
            raise ValueError(
                f"data.batch_size={batch_size}: must be a multiple of devices × accumulate "
                f"= {world} × {accumulate} = {world * accumulate}"
            )
        self.source, self.accumulate, self.rank, self.world, self.train = source, accumulate, rank, world, train
        self.count = batch_size // (world * accumulate)

    def __getitem__(self, index: int) -> Batch:
        step, micro = divmod(index, self.accumulate)
        first = (micro * self.world + self.rank) * self.count
        fetch = self.source.train_batch if self.train else self.source.val_batch
        return fetch(step, first, self.count)


def train_loader(
    source: Source,
    settings: Any,
    start_step: int,
    max_steps: int,
    accumulate: int = 1,
    rank: int = 0,
    world: int = 1,
    workers: int = 0,
    pin_memory: bool | None = None,
) -> DataLoader:
    """Micro-batches of optimizer steps start_step..max_steps-1 (pinned when CUDA is there)."""
    dataset = StepDataset(source, settings.batch_size, accumulate, rank, world)
    return _loader(dataset, range(start_step * accumulate, max_steps * accumulate), workers, pin_memory)


def val_loader(
    source: Source,
    settings: Any,
    batches: int | None = None,
    accumulate: int = 1,
    rank: int = 0,
    world: int = 1,
    workers: int = 0,
    pin_memory: bool | None = None,
) -> DataLoader:
    """The first `batches` validation batches (None: all), in pieces as large as training's.

    ValueError when the source has no end and `batches` is None.
    """
    available = source.val_batches_available()
    known = [number for number in (batches, available) if number is not None]
    if not known:
        raise ValueError("trainer.val_batches=null: must be a number, this source has no last batch")
    dataset = StepDataset(source, settings.batch_size, accumulate, rank, world, train=False)
    return _loader(dataset, range(min(known) * accumulate), workers, pin_memory)


def _loader(dataset: StepDataset, indices: range, workers: int, pin_memory: bool | None) -> DataLoader:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")  # said by trainer.workers itself
        return _Loader(
            dataset,
            batch_size=None,
            sampler=indices,
            num_workers=workers,
            # DataLoader seeds its workers from this one; without it, it would draw from the global
            # generator and the number of loaders made would change the model's random numbers.
            generator=torch.Generator(),
            pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
            worker_init_fn=_serve_until_the_parent_ends_it if workers else None,
        )


class _Loader(DataLoader):
    """Starts its workers with both signals held back, until each of them has arranged what becomes of them.

    A worker that a signal reached before would end, and its trainer with it. The trainer gets its own after that.
    """

    def __iter__(self) -> Any:
        if not self.num_workers:
            return super().__iter__()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            return super().__iter__()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve_until_the_parent_ends_it(_worker: int) -> None:
    """Let a worker outlive Ctrl-C and a scheduler's SIGTERM, which reach the whole process group:
    the trainer still needs it to finish its step. SIGTERM from the trainer itself ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not hasattr(signal, "sigwaitinfo"):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_when_the_parent_says, args=(os.getppid(),), daemon=True).start()


def _end_when_the_parent_says(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
