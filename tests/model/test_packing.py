"""Packed rows of a token folder through training and validation: as if each document were trained on alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from k3lab.config.load import load
from k3lab.config.registry import component
from k3lab.data.base import NO_TARGET, Batch
from k3lab.data.prepare import prepare
from k3lab.model.build import build_model
from k3lab.training.module import TrainingModule, cross_entropy_sum
from k3lab.training.validation import validate

SIZES = ["model.hidden_size=16", "model.heads=2", "model.layers=2", "ffn=moe", "data.seq_len=48", "data.batch_size=4"]


def packed(folder: Path) -> tuple[Any, Any, Any]:
    """Configuration, source and fp64 model for a few documents of 1 to 90 bytes."""
    texts = folder / "texts"
    texts.mkdir()
    for i in range(24):
        (texts / f"{i}.txt").write_text(f"{i} " * (1 + 7 * i % 30))
    prepare([texts], folder / "tokens", None, 0.3)
    config = load(["data=shards", f"data.path={folder / 'tokens'}", "data.packing=true", *SIZES])
    source = component("data", "shards")(config.data, 0)
    source.prepare()
    torch.manual_seed(0)
    return config, source, build_model(config, source.vocab_size).double()


def alone(model: Any, batch: Batch) -> tuple[float, int]:
    """Summed loss of every document run by itself, and how many there were."""
    total, documents = 0.0, 0
    for b, ids in enumerate(batch["documents"]):
        for number in ids.unique():
            own = (ids == number) & batch["mask"][b]
            targets = batch["targets"][b, own]
            if (targets != NO_TARGET).any():
                documents += 1
                logits = model(batch["tokens"][None, b, own]).logits_BTV
                total += cross_entropy_sum(logits, targets[None]).item()
    return total, documents


def test_the_loss_of_a_packed_step_is_that_of_its_documents_alone(tmp_path: Path) -> None:
    config, source, model = packed(tmp_path)
    module = TrainingModule(config, model, source, lambda m: torch.optim.SGD(m.parameters()), lambda *_: 1.0)
    batch = source.train_batch(0, 0, 4)
    expected, documents = alone(model, batch)
    assert documents > 4, "rows hold several documents"
    found = module.training_step(batch, 0).item()
    assert abs(found - expected / source.targets_in_step(0)) < 1e-10
    mixed = cross_entropy_sum(model(batch["tokens"], batch["mask"]).logits_BTV, batch["targets"]).item()
    assert abs(mixed - expected) > 1e-6, "without their numbers the documents would see one another"


def test_so_is_the_validation_s(tmp_path: Path) -> None:
    config, source, model = packed(tmp_path)
    batches = [source.val_batch(i, 0, 4) for i in range(source.val_batches_available())]
    losses = [alone(model.eval(), batch)[0] for batch in batches[: config.trainer.val_batches]]
    targets = sum((batch["targets"] != NO_TARGET).sum().item() for batch in batches[: config.trainer.val_batches])
    found = validate(model, source, config, torch.device("cpu"))["val/loss"]
    assert abs(found - sum(losses) / targets) < 1e-10
