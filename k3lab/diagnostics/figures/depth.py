"""Along the depth: sizes and gradients over training, what each sublayer changes, what it reads."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from k3lab.diagnostics.figures.history import History, Table
from k3lab.plotting import (
    BLACK,
    HEAT,
    canvas,
    edges,
    grid,
    label_below,
    log_scale,
    numbers_in,
    plain_log,
    shades,
    spread_out,
    whole_numbers,
)
from k3lab.tracking import names

SIZES = (
    (names.DEPTH_OUTPUT_RMS, "output RMS", "output RMS (log scale)"),
    (names.DEPTH_GRAD_RMS, "RMS of the gradient at the output", "gradient RMS (nats, log scale)"),
)
PROFILE = (
    (names.DEPTH_UPDATE_RATIO, "update ratio ‖f‖ / ‖h‖"),
    (names.DEPTH_UPDATE_COSINE, "cosine of update and stream"),
    (names.DEPTH_BLOCK_INFLUENCE, "block influence 1 − cos"),
    (names.DEPTH_ANGULAR_DISTANCE, "angular distance (units of π)"),
    (names.DEPTH_EFFECTIVE_RANK, "effective rank (directions)"),
    (names.DEPTH_CKA_NEXT, "linear CKA with the next input"),
    (names.DEPTH_SOURCE_ENTROPY, "source entropy (1 = even)"),
    (names.DEPTH_EMBEDDING_MASS, "weight on the embedding"),
    (names.DEPTH_LAST_SOURCE_MASS, "weight on the newest source"),
)
MARKS = [
    Line2D([], [], color=BLACK, marker="o", ls="", ms=4.5, label="mixer"),
    Line2D([], [], color=BLACK, marker="s", ls="", ms=4.5, mfc="white", label="feed-forward"),
]


def draw_sizes(history: History, file: Path) -> bool:
    """Draw output and gradient RMS: heat maps over steps, profiles of some steps; returns whether there was any."""
    tables = [(history.layers(name), title, label) for name, title, label in SIZES]
    if any(table is None for table, _, _ in tables):
        return False
    with canvas(
        5.6, file, "Along the depth, over training: what each sublayer adds, and how much it is taught"
    ) as figure:
        axes = figure.subplots(2, 2, height_ratios=[1.15, 1])
        for column, (table, title, label) in enumerate(tables):
            assert table is not None
            heat, profile = axes[0, column], axes[1, column]
            positive = table.values_LN[np.isfinite(table.values_LN) & (table.values_LN > 0)]
            low, high = (float(positive.min()), float(positive.max())) if len(positive) else (0.1, 1.0)
            mesh = heat.pcolormesh(
                edges(table.steps_N),
                edges(table.layers_L),
                np.where(table.values_LN > 0, table.values_LN, np.nan),
                cmap=HEAT,
                norm=LogNorm(low, max(high, 1.01 * low)),
            )
            heat.invert_yaxis()
            heat.grid(False)
            heat.set_title(title)
            heat.set_xlabel("optimizer step")
            heat.set_ylabel("sublayer" if column == 0 else "")
            whole_numbers(heat.xaxis, 6)
            heat.set_yticks(spread_out(list(table.layers_L), 9))
            plain_log(figure.colorbar(mesh, ax=heat, pad=0.01, aspect=16).ax.yaxis)
            _profiles(profile, table)
            log_scale(profile)
            profile.set_ylabel(label)
            profile.set_xlabel("sublayer")
        _legend(figure, axes[1, 0])
    return True


def draw_profile(history: History, file: Path) -> bool:
    """Draw what each sublayer changes and reads, at some steps; returns whether there was any."""
    found = [(t, label) for name, label in PROFILE if (t := history.layers(name)) is not None]
    if not found:
        return False
    with canvas(
        1.1 + 1.85 * -(-len(found) // 3), file, "Along the depth: what each sublayer changes and reads"
    ) as figure:
        axes = grid(figure, len(found), 3, share=False)
        for axis, (table, label) in zip(axes, found, strict=True):
            _profiles(axis, table)
            axis.set_title(label)
        label_below(axes, 3, "sublayer")
        _legend(figure, axes[0])
    return True


def _legend(figure: Figure, axis: Axes) -> None:
    handles, _ = axis.get_legend_handles_labels()
    figure.legend(handles=[*handles, *MARKS], loc="outside lower left", ncols=7)


def _profiles(axis: Axes, table: Table) -> None:
    """Plot a metric by sublayer at up to four steps, the last one the darkest."""
    steps = spread_out(list(table.steps_N), 4)
    for tone, step in zip(reversed(shades(len(steps))), steps, strict=True):
        values_L = table.values_LN[:, list(table.steps_N).index(step)]
        plot_by_sublayer(axis, table.layers_L, values_L, tone, f"step {step:,}")
    whole_numbers(axis.xaxis)


def plot_by_sublayer(axis: Axes, layers_L: np.ndarray, values_L: np.ndarray, colour: Any, label: str = "") -> None:
    """Plot one profile: a line, mixers as dots, feed-forward sublayers as open squares."""
    size = 4.5 if len(layers_L) <= 40 else 2.5
    axis.plot(layers_L, values_L, color=colour, lw=1.2, label=label)
    mixers = layers_L % 2 == 0
    axis.plot(layers_L[mixers], values_L[mixers], "o", ms=size, color=colour)
    axis.plot(layers_L[~mixers], values_L[~mixers], "s", ms=size, color=colour, mfc="white")


def draw_sources(found: tuple[list[str], np.ndarray] | None, file: Path, when: str = "") -> bool:
    """Draw the mean weight of each source in each mix, from labels [M] and weights [M,S] (NaN: no such source)."""
    if found is None or not np.isfinite(found[1]).any():  # a diverged model reads nothing but NaN
        return False
    label_M, weight_MS = found
    readers, sources = weight_MS.shape
    title = f"Attention over depth {when}: what each sublayer reads (% of its input; a row adds up to 100)"
    with canvas(1.5 + min(6.5, 0.24 * readers), file, title) as figure:
        axis = figure.subplots()
        most = max(10.0, 10 * math.ceil(10 * float(np.nanmax(weight_MS)) - 1e-9))
        image = axis.imshow(100 * weight_MS, cmap=HEAT, vmin=0, vmax=most, aspect="auto", interpolation="nearest")
        axis.grid(False)
        axis.set_xticks(spread_out(range(sources), 24))
        shown = spread_out(range(readers), 26)
        axis.set_yticks(shown, [label_M[i] for i in shown])
        axis.set_xlabel("source: 0 is the embedding, then blocks or sublayers in order; the last may be a running sum")
        axis.set_ylabel("reading sublayer")
        if sources <= 24 and readers <= 30:
            numbers_in(axis, 100 * weight_MS, most / 2)
        figure.colorbar(image, ax=axis, pad=0.01, aspect=24).set_label("weight (%)")
    return True
