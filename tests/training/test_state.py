"""A model and its optimizer, taken and put back; what does not fit is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from k3lab.training import checkpoint
from k3lab.training.foreign import CheckpointError
from k3lab.training.state import capture, load_weights, restore


def build(width: int = 4, decayed_first: bool = True) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, width), nn.Dropout(0.5), nn.Linear(width, 1))
    model.register_buffer("bias", torch.zeros(2))
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices if decayed_first else matrices[::-1]}, {"params": vectors, "weight_decay": 0.0}]
    return model, torch.optim.AdamW(groups, lr=0.1, betas=(0.9, 0.95))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        loss = model(torch.ones(2, 3)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("decayed_first", [True, False])
def test_training_continues_bitwise(tmp_path: Path, decayed_first: bool) -> None:
    model, optimizer = build()
    train(model, optimizer, 3)
    folder = checkpoint.write(tmp_path, capture(3, model, optimizer, {"x": 1}), keep=1)
    wanted = train(model, optimizer, 4)
    other, other_optimizer = build(decayed_first=decayed_first)  # the order of parameters does not matter
    address = other[0].weight.data_ptr()
    torch.manual_seed(99)
    restore(other, other_optimizer, checkpoint.read(folder), folder)
    assert other[0].weight.data_ptr() == address, "copied in place"
    assert train(other, other_optimizer, 4) == wanted


def test_another_model_is_named(tmp_path: Path) -> None:
    model, _ = build()
    weights = dict(model.state_dict())
    with pytest.raises(CheckpointError, match=r"'0.weight' is float32 \[4, 3\], this model's is float32 \[5, 3\]"):
        load_weights(build(width=5)[0], weights, tmp_path)
    with pytest.raises(CheckpointError, match="'bias' is float64"):
        load_weights(model, {**weights, "bias": torch.zeros(2, dtype=torch.float64)}, tmp_path)
    with pytest.raises(CheckpointError, match="has the tensor 'extra'"):
        load_weights(model, {**weights, "extra": torch.zeros(1)}, tmp_path)
    del weights["2.bias"]
    with pytest.raises(CheckpointError, match=r"lacks the tensor '2\.bias'"):
        load_weights(model, weights, tmp_path)


def test_another_optimizer_is_refused(tmp_path: Path) -> None:
    model, optimizer = build()
    snapshot = capture(0, model, optimizer, {})
    with pytest.raises(CheckpointError, match="parameter groups differ"):
        restore(model, torch.optim.SGD(model.parameters(), lr=0.1), snapshot, tmp_path)
