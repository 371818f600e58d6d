"""Which parameters are matrices to orthogonalise, and how each is read as a stack of them.

H heads or experts, M rows of one of them, C columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from k3lab.optim.groups import decayed_and_plain

# Projections that belong to heads in any module with `heads`; output rows are ordered by head.
_BY_HEAD = ("q", "k", "v", "kv_up")


@dataclass(frozen=True)
class Stack:
    """A parameter seen as [H,M,C], its rows cut into parts that are matrices of their own."""

    heads: int
    rows: tuple[int, ...]  # of each part of a head; they add up to M

    def matrices(self, x: Tensor) -> tuple[Tensor, ...]:
        """Views of x, one [H,rows,C] for each part."""
        return x.view(self.heads, sum(self.rows), x.shape[-1]).split(self.rows, dim=1)


@dataclass(frozen=True)
class Division:
    """All trainable parameters of a model, each once."""

    stacks: dict[nn.Parameter, Stack]  # for Muon
    decayed: list[nn.Parameter]  # for AdamW, with weight decay: the head, convolutions
    plain: list[nn.Parameter]  # for AdamW, without: vectors, embeddings, norms, decay rates, pseudo-queries


def divide(model: nn.Module, per_head: bool) -> Division:
    """Divide the parameters of a model; with `per_head` projections of heads become one matrix a head.

    A module tells which of its parameters belong to heads by `muon_heads`: {name of the parameter inside the
    module: rows of one head}, where several numbers are parts of a head, such as keys and values. Without it,
    projections called q, k, v and kv_up of a module with `heads` (and `value_heads`, if v has its own) count.
    A parameter with more than two dimensions is a stack of matrices, such as those of experts.
    ValueError: rows that a head does not divide.
    """
    decayed, plain = decayed_and_plain(model)
    names = {id(p): name for name, p in model.named_parameters()}
    head = {id(p) for p in head_of(model)}
    by_head = _heads(model) if per_head else {}
    stacks: dict[nn.Parameter, Stack] = {}
    rest = []
    for parameter in decayed:
        if id(parameter) in head or min(parameter.shape[-2:]) < 2:  # a depthwise filter is a vector a channel
            rest.append(parameter)
            continue
        matrix = parameter.shape[-2]
        rows = by_head.get(id(parameter), (matrix,))
        if matrix % sum(rows):
            raise ValueError(f"{names[id(parameter)]} has {matrix} rows: must be a multiple of {sum(rows)}, one head's")
        stacks[parameter] = Stack(parameter.numel() // (sum(rows) * parameter.shape[-1]), rows)
    return Division(stacks, rest, plain)


def head_of(model: nn.Module) -> list[nn.Parameter]:
    """Parameters of the output head: a classifier over tokens, not a map of activations."""
    head = getattr(model, "head", None)
    return list(head.parameters()) if isinstance(head, nn.Module) else []


def _heads(model: nn.Module) -> dict[int, tuple[int, ...]]:
    """Rows of one head of every parameter that belongs to heads, by its id."""
    found: dict[int, tuple[int, ...]] = {}
    for module in model.modules():
        declared = getattr(module, "muon_heads", None)
        for name, rows in (_guess(module) if declared is None else declared).items():
            found[id(module.get_parameter(name))] = tuple(rows)
    return found


def _guess(module: Any) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for name, child in module.named_children() if isinstance(getattr(module, "heads", None), int) else ():
        linears = [(inner, m) for inner, m in child.named_modules() if isinstance(m, nn.Linear)]
        if name not in _BY_HEAD or not linears:
            continue
        inner, last = linears[-1]  # a low-rank projection reaches the heads with its last map
        heads = module.value_heads if name == "v" and hasattr(module, "value_heads") else module.heads
        path = ".".join(part for part in (name, inner, "weight") if part)
        if last.out_features % heads:
            kind = type(module).__name__
            raise ValueError(f"{kind}.{path} has {last.out_features} rows: must be a multiple of its {heads} heads")
        rows = last.out_features // heads
        values = module.value_dim if name == "kv_up" else 0
        found[path] = (rows - values, values) if values else (rows,)
    return found
