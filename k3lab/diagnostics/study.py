"""A study of a checkpoint: what is too dear to measure during training, on held-out data, with figures and numbers.

`k3lab eval run=FOLDER diagnostics=NAME` runs the study of that name: a class and its settings in one file, like
any other option. It writes ``figures/NAME/*.png`` and ``figures/NAME/NAME.json`` into the run folder.

B sequences, T tokens of a sequence, V vocabulary.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from k3lab.tracking.local import write_json

NO_TARGET = -100
Batch = dict[str, Tensor]


@dataclass
class Subject:
    """A trained model and data that it has not seen."""

    model: Any  # in evaluation mode
    batches: Iterable[Batch]  # on the model's device
    folder: Path  # of the run
    step: int  # optimizer steps done
    vocab_size: int
    decode: Callable[[list[int]], str]  # token ids → text; UserError where they have no text form
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext  # opens the autocast region


class Study(ABC):
    """Base of all studies; ctor ``(settings)``, whose ``name`` is also that of the folder of figures."""

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def run(self, subject: Subject) -> dict[str, float]:
        """Measure, draw and write; returns the metrics by name. Raises UserError for a model without the subject."""
        metrics, data, draw = self.measure(subject)
        folder = subject.folder / "figures" / self.settings.name
        folder.mkdir(parents=True, exist_ok=True)
        about = {"step": subject.step, "settings": asdict(self.settings)}
        write_json(folder / f"{self.settings.name}.json", {**about, "metrics": metrics, **data})
        draw(folder)
        print(f"k3lab: figures and numbers are in {folder}", file=sys.stderr, flush=True)
        return metrics

    @abstractmethod
    def measure(self, subject: Subject) -> tuple[dict[str, float], dict[str, Any], Callable[[Path], None]]:
        """Return metrics, further numbers for the JSON file, and what draws into a folder."""


def pieces(batches: Iterable[Batch], sequences: int) -> Iterator[tuple[int, Batch]]:
    """Cut batches into pieces of up to ``sequences``; yields each with the number of its batch.

    Sequences without any target fill up the end of a validation set: they are left out.
    """
    for number, batch in enumerate(batches):
        real_B = (batch["targets"] != NO_TARGET).any(1)
        kept = {k: v[real_B] for k, v in batch.items()}
        for first in range(0, len(kept["tokens"]), sequences):
            yield number, {k: v[first : first + sequences] for k, v in kept.items()}


def forward(model: Any, batch: Batch) -> Any:
    """The model's output for a batch with all that the batch says about its tokens."""
    extra = {"documents_BT": batch["documents"]} if batch.get("documents") is not None else {}
    return model(batch["tokens"], batch.get("mask"), **extra)


def row_losses(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """The summed cross-entropy of each sequence in nats: [B] fp64."""
    wide = logits_BTV.float().flatten(0, 1)
    loss = F.cross_entropy(wide, targets_BT.flatten(), ignore_index=NO_TARGET, reduction="none")
    return loss.view_as(targets_BT).double().sum(1)


def real_tokens(batch: Batch) -> Any:
    """What picks the real tokens out of the B·T of a batch."""
    mask = batch.get("mask")
    return slice(None) if mask is None else mask.flatten().nonzero().squeeze(1)


def kind(model: Any, sublayer: int) -> str:
    """The name of a sublayer's component, such as ``kda``."""
    layer = model.layers[sublayer // 2]
    module = layer.mixer if sublayer % 2 == 0 else layer.ffn
    settings = getattr(module, "settings", None)
    return str(getattr(settings, "name", type(module).__name__.lower()))
