"""What the figures show of the last measurement beyond its metrics: single experts and single channels.

E experts, H heads, K channels a head, S sources, N tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from k3lab.diagnostics.balance_metrics import biases_of
from k3lab.diagnostics.decay_metrics import channel_half_lives
from k3lab.diagnostics.probe import Record


@dataclass
class Snapshot:
    """One measurement, on the CPU."""

    step: int
    tokens: int  # of one sequence of the probe
    biases: dict[int, Tensor] = field(default_factory=dict)  # decoder layer → [E]
    half_lives: dict[int, Tensor] = field(default_factory=dict)  # decoder layer → tokens, [H,K]
    bounds: dict[int, float | None] = field(default_factory=dict)  # decoder layer → nats a step
    sources: dict[int, Tensor] = field(default_factory=dict)  # sublayer (last: the output) → mean weights [S]
    sublayers: int = 0


def take(step: int, batch: dict[str, Tensor], model: Any, record: Record) -> Snapshot:
    """Keep what the figures need of a probe."""
    return Snapshot(
        step,
        batch["tokens"].shape[1],
        {i: bias_E.detach().to("cpu", copy=True) for i, bias_E in biases_of(model).items()},
        {i: channel_half_lives(g_MHK).cpu() for i, (g_MHK, _) in record.log_decays.items()},
        {i: bound for i, (_, bound) in record.log_decays.items()},
        {i: p_SN.mean(1).cpu() for i, p_SN in enumerate(record.weights) if p_SN is not None and len(p_SN) > 1},
        len(record.outputs),
    )
