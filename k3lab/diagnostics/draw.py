"""All figures of a run, from what it logged and from its last measurement."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from k3lab.diagnostics.figures import balance, decay, depth
from k3lab.diagnostics.figures.history import History
from k3lab.diagnostics.snapshot import Snapshot

FIGURES = "figures"


def draw_run(folder: Path, snapshot: Snapshot | None = None) -> list[Path]:
    """Draw ``folder/figures/*.png`` from its metrics.jsonl, and return those for which there was anything to show.

    Single experts and channels are in a ``snapshot`` alone: without one, their figures are left as they are.
    """
    history = History.read(folder)
    drawers: dict[str, Callable[[Path], bool]] = {
        "load": partial(balance.draw_load, history),
        "drops": partial(balance.draw_drops, history),
        "biases": partial(balance.draw_biases, history),
        "depth_sizes": partial(depth.draw_sizes, history),
        "depth_profile": partial(depth.draw_profile, history),
        "sources": partial(depth.draw_sources, _sources(history, snapshot), when="at the last measurement"),
        "decay": partial(decay.draw_over_steps, history),
    }
    if snapshot is not None:
        drawers["experts"] = partial(balance.draw_experts, snapshot)
        drawers["half_lives"] = partial(decay.draw_spectrum, snapshot)
    return [file for name, draw in drawers.items() if draw(file := folder / FIGURES / f"{name}.png")]


def _sources(history: History, snapshot: Snapshot | None) -> tuple[list[str], np.ndarray] | None:
    """The snapshot's weights, all of them; else those that were few enough to be logged."""
    if snapshot is None or not snapshot.sources:
        return history.sources()
    weight_MS = np.full((len(snapshot.sources), max(len(p_S) for p_S in snapshot.sources.values())), np.nan)
    for row, p_S in enumerate(snapshot.sources.values()):
        weight_MS[row, : len(p_S)] = p_S.numpy()
    return ["output" if i == snapshot.sublayers else str(i) for i in snapshot.sources], weight_MS
