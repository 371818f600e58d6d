"""Forgetting: the half-lives of all channels, how they moved, and the channels that are stuck at either end."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from k3lab.decay.base import DEAD
from k3lab.diagnostics.figures.history import History
from k3lab.diagnostics.snapshot import Snapshot
from k3lab.plotting import (
    BLACK,
    BLUE,
    GREEN,
    VERMILLION,
    canvas,
    dots,
    from_zero,
    grid,
    label_below,
    log_scale,
    plain_log,
    shades,
    some_of,
    spread_out,
    thin,
    whole_numbers,
)
from k3lab.tracking import names

LONGEST = math.log(2) / DEAD  # tokens: dead channels count as this
BINS = 4  # a factor of ten


def draw_spectrum(snapshot: Snapshot, file: Path) -> bool:
    """Draw a histogram over channels of the half-life, for every layer; returns whether there was any."""
    # a diverged model has none
    layers = [i for i, life_HK in snapshot.half_lives.items() if life_HK.isfinite().all()]
    if not layers:
        return False
    shown = spread_out(layers)
    everything = np.concatenate([snapshot.half_lives[i].flatten().double().numpy() for i in layers])
    ends = [math.log(2) / -b for b in snapshot.bounds.values() if b is not None]
    low, high = min(everything.min(), *ends, 1.0), max(everything.max(), 2 * snapshot.tokens)
    borders = 10 ** np.arange(math.floor(BINS * math.log10(low)) / BINS, math.log10(high) + 1 / BINS, 1 / BINS)
    columns = min(4, len(shown))
    title = f"Half-life of every channel after {snapshot.step:,} steps" + some_of(len(shown), len(layers), "layers")
    with canvas(1.3 + 1.75 * -(-len(shown) // columns), file, title) as figure:
        axes = grid(figure, len(shown), columns)
        for axis, layer in zip(axes, shown, strict=True):
            values = snapshot.half_lives[layer].flatten().double().numpy()
            share = np.full(len(values), 100 / len(values))
            axis.hist(values, borders.tolist(), weights=share, color=BLUE, edgecolor="white", linewidth=0.5)
            axis.set_xscale("log")
            bound = snapshot.bounds[layer]
            if bound is not None:
                axis.axvline(math.log(2) / -bound, color=VERMILLION, lw=1.6, label="shortest that the bound allows")
            axis.axvline(float(np.median(values)), color=BLACK, lw=1.4, label="median channel")
            axis.axvline(snapshot.tokens, color=GREEN, ls="--", lw=1.4, label=f"sequence, {snapshot.tokens} tokens")
            axis.set_title(f"decoder layer {layer}")
            _powers(axis)
        label_below(axes, columns, "half-life (tokens, log scale)")
        figure.supylabel("channels (%)", fontsize=9.5)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=3)
    return True


def draw_over_steps(history: History, file: Path) -> bool:
    """Draw half-life quantiles and the shares of stuck channels over steps; returns whether there was any."""
    middle = history.line(names.DECAY_HALF_LIFE_MEDIAN)
    dead, bound = history.layers(names.DECAY_DEAD_FRACTION), history.layers(names.DECAY_AT_BOUND_FRACTION)
    by_layer = history.layers(names.DECAY_HALF_LIFE_MEDIAN)
    if middle is None or by_layer is None or dead is None:
        return False
    with canvas(3.5, file, "Forgetting over training: half-lives, and channels stuck at either end") as figure:
        half, stuck, never = figure.subplots(1, 3)
        low, high = history.line(names.DECAY_HALF_LIFE_Q10), history.line(names.DECAY_HALF_LIFE_Q90)
        if low is not None and high is not None and len(low.steps_N) == len(high.steps_N) == len(middle.steps_N):
            half.fill_between(low.steps_N, low.values_N, high.values_N, color=BLUE, alpha=0.15, lw=0)
        shares = (
            (half, by_layer, middle, 1.0),
            (stuck, bound, history.line(names.DECAY_AT_BOUND_FRACTION), 100.0),
            (never, dead, history.line(names.DECAY_DEAD_FRACTION), 100.0),
        )
        for axis, table, line, scale in shares:
            if table is not None and line is not None:
                tones, mark = shades(len(table.layers_L)), dots(len(table.steps_N))
                for row, layer in enumerate(table.layers_L):
                    known = len(table.layers_L) <= 8 or row in (0, len(table.layers_L) - 1)
                    label = f"layer {layer}" if known else None
                    style = {"color": tones[row], "label": label} | thin(len(tones)) | mark
                    axis.plot(table.steps_N, scale * table.values_LN[row], **style)
                axis.plot(line.steps_N, scale * line.values_N, color=VERMILLION, ls="--", label="all layers", **mark)
            else:
                axis.text(0.5, 0.5, "the decay has no bound", transform=axis.transAxes, ha="center", va="center")
            axis.set_xlabel("optimizer step")
            whole_numbers(axis.xaxis, 5)
        log_scale(half)
        half.set_title("median half-life; band: 10 to 90 %")
        half.set_ylabel("half-life (tokens, log scale)")
        stuck.set_title("at the bound: |g| ≥ 99 % of it")
        never.set_title("dead: |g| < 1e-6, never forget")
        for axis in (stuck, never):
            from_zero(axis)
            axis.set_ylabel("channels × tokens (%)")
        handles, labels = half.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=7)
    return True


def _powers(axis: Axes) -> None:
    """Label a logarithmic horizontal axis at powers of ten alone."""
    plain_log(axis.xaxis)
    axis.tick_params(axis="x", which="minor", labelbottom=False)
