"""All figures of a run, from what it logged and from its last measurement."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

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
        "sources": partial(depth.draw_sources, history.sources(), when="at the last measurement"),
        "decay": partial(decay.draw_over_steps, history),
    }
    if snapshot is not None:
        drawers["experts"] = partial(balance.draw_experts, snapshot)
        drawers["half_lives"] = partial(decay.draw_spectrum, snapshot)
    return [file for name, draw in drawers.items() if draw(file := folder / FIGURES / f"{name}.png")]
