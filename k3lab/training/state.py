"""A training's whole state between two optimizer steps, taken and put back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from k3lab.training.checkpoint import Snapshot
from k3lab.training.foreign import CheckpointError
from k3lab.training.packing import rng_state, set_rng_state


def capture(step: int, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> Snapshot:
    """Return the state of a training that has done ``step`` steps, with ``state`` beside it."""
    return Snapshot(step, model.state_dict(), optimizer_state(model, optimizer), rng_state(), state)


def restore(model: nn.Module, optimizer: torch.optim.Optimizer, snapshot: Snapshot, where: Path) -> None:
    """Put a snapshot's weights, optimizer and random generators in place; CheckpointError names what differs."""
    load_weights(model, snapshot.model, where)
    load_optimizer(model, optimizer, snapshot.optimizer, where)
    set_rng_state(snapshot.rng)


def load_weights(model: nn.Module, weights: dict[str, Tensor], where: Path) -> None:
    """Copy a state dict into the model in place; raises CheckpointError naming the first tensor that differs."""
    own = model.state_dict()
    missing, foreign = [n for n in own if n not in weights], [n for n in weights if n not in own]
    if missing or foreign:
        what = f"lacks the tensor '{missing[0]}'" if missing else f"has the tensor '{foreign[0]}'"
        raise CheckpointError(f"{where} is of another model: it {what}")
    for name, tensor in own.items():
        found = weights[name]
        if found.shape != tensor.shape or found.dtype != tensor.dtype:
            raise CheckpointError(
                f"{where} is of another model: '{name}' is {_form(found)}, this model's is {_form(tensor)}"
            )
    model.load_state_dict(weights)


def optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the optimizer's state dict with parameters by name, so that their order may change."""
    names = _names(model, optimizer)
    state = optimizer.state_dict()
    return {
        "state": {names[index]: value for index, value in state["state"].items()},
        "param_groups": [{**g, "params": [names[i] for i in g["params"]]} for g in state["param_groups"]],
    }


def load_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any], where: Path) -> None:
    """Load a state with parameters by name; raises CheckpointError if the groups differ."""
    index_of = {name: index for index, name in enumerate(_names(model, optimizer))}
    own = [list(g["params"]) for g in optimizer_state(model, optimizer)["param_groups"]]
    saved = [sorted(g["params"]) for g in state["param_groups"]]
    if [sorted(group) for group in own] != saved:
        raise CheckpointError(f"{where} is of another optimizer: its parameter groups differ")
    groups = [
        {**g, "params": [index_of[name] for name in names]} for g, names in zip(state["param_groups"], own, strict=True)
    ]
    try:
        optimizer.load_state_dict(
            {"state": {index_of[n]: v for n, v in state["state"].items()}, "param_groups": groups}
        )
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"{where} is of another optimizer: {error}") from error


def _names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Return parameter names in the order in which a state dict numbers the parameters."""
    by_id = {id(p): name for name, p in model.named_parameters()}
    return [by_id[id(p)] for group in optimizer.param_groups for p in group["params"]]


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
