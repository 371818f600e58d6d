"""Load balance: the worst layer over steps beside its sampling floor, and all layers as a heat map."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.lines import Line2D

from k3lab.plotting import BLACK, HEAT, canvas, grid, log_scale, plain_log, whole_numbers
from k3lab.report.analysis import Analysis
from k3lab.report.arms import Arm
from k3lab.report.document import Part, Picture, Strong
from k3lab.report.figures import series
from k3lab.report.figures.style import chosen, colours, dashes, legend, wrap
from k3lab.tracking import names

_LAYER = re.compile(rf"balance/layer_(\d+)/{names.BALANCE_MAX_VIO.split('/')[1]}")


def draw_worst(analysis: Analysis, folder: Path, file: str) -> Picture | None:
    """Draw MaxVio of the worst layer over steps."""
    bands = {arm.name: series.spread(analysis, arm, names.BALANCE_MAX_VIO) for arm in analysis.arms}
    arms = [arm for arm in analysis.arms if (b := bands[arm.name]) is not None and len(b.steps) > 1]
    if not arms:
        return None
    shown, palette, style = chosen(analysis, arms), colours(analysis), dashes(analysis)
    floor = None
    with canvas(3.7 + 0.1 * len(shown), folder / f"{file}.png") as figure:
        axis = figure.subplots()
        for arm in shown:
            band = bands[arm.name]
            assert band is not None
            axis.fill_between(band.steps, band.low, band.high, color=palette[arm.name], alpha=0.12, lw=0)
            axis.plot(band.steps, band.mean, color=palette[arm.name], ls=style[arm.name])
            ground = series.spread(analysis, arm, names.BALANCE_MAX_VIO_FLOOR)
            if ground is not None:
                keep = ground.steps > 0  # before the first step only a probe's few tokens were routed
                floor = Line2D([], [], color=BLACK, ls=":", lw=1.6, label="sampling floor")
                axis.plot(ground.steps[keep], ground.mean[keep], color=BLACK, ls=":", lw=1.6)
        log_scale(axis)
        axis.set_xlabel("optimizer step")
        axis.set_ylabel("MaxVio of the worst layer\n(0 = even load; log scale)")
        legend(figure, analysis, shown, [floor] if floor is not None else [])
    caption: list[Part] = [
        Strong("Load imbalance over training. "),
        "How far the busiest expert of the worst layer is above its share. Mean over seeds; band: smallest to largest "
        "seed. Dotted: what chance alone would show with a perfectly balanced router.",
    ]
    return Picture(file, "Load imbalance of the worst layer over steps", caption)


def draw_layers(analysis: Analysis, folder: Path, file: str) -> Picture | None:
    """Draw MaxVio of every layer over steps, a panel for each arm."""
    maps = {arm.name: _map(analysis, arm) for arm in analysis.arms}
    arms = chosen(analysis, [arm for arm in analysis.arms if maps[arm.name] is not None], 8)
    if not arms:
        return None
    found = [m for arm in arms if (m := maps[arm.name]) is not None]
    positive = np.concatenate([m[2].ravel() for m in found])
    positive = positive[np.isfinite(positive) & (positive > 0)]
    if not len(positive):
        return None
    low, high = np.quantile(positive, [0.02, 1.0])
    columns = min(4, len(arms)) if len(arms) > 3 else len(arms)
    layers = max(len(m[0]) for m in found)
    with canvas(1.2 + (0.75 + 0.11 * min(layers, 16)) * -(-len(arms) // columns), folder / f"{file}.png") as figure:
        axes = grid(figure, len(arms), columns)
        norm = LogNorm(low, max(high, low * 1.01))
        for axis, arm, (layer_L, steps_N, values_LN) in zip(axes, arms, found, strict=True):
            edges = np.append(steps_N, 2 * steps_N[-1] - steps_N[-2])
            rows = np.append(layer_L, layer_L[-1] + 1) - 0.5
            mesh = axis.pcolormesh(edges, rows, values_LN, cmap=HEAT, norm=norm, rasterized=True)
            axis.set_title(wrap(arm.short, 92 // columns), fontsize=8.8)
            axis.grid(False)
            axis.set_ylim(rows[-1], rows[0])
            whole_numbers(axis.yaxis)
        bar = figure.colorbar(mesh, ax=axes, pad=0.01, aspect=26)
        plain_log(bar.ax.yaxis)
        bar.set_label("MaxVio (log scale)")
        figure.supxlabel("optimizer step", fontsize=9.5)
        figure.supylabel("decoder layer (0 = first)", fontsize=9.5)
    caption: list[Part] = [
        Strong("Load imbalance by layer. "),
        "Bright is uneven: the busiest expert of that layer at that step was far above its share. Mean over seeds.",
        f" The first {len(arms)} arms." if len(arms) < sum(m is not None for m in maps.values()) else "",
    ]
    return Picture(file, "Heat map of load imbalance, decoder layer by step", caption)


def _map(analysis: Analysis, arm: Arm) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return layers [L], steps [N] and mean MaxVio [L,N]; None unless every layer shares two or more steps."""
    runs = analysis.usable[arm.name]
    layers = sorted({int(m.group(1)) for run in runs for n in run.series if (m := _LAYER.fullmatch(n))})
    rows: list[tuple[np.ndarray, np.ndarray]] = []
    for index in layers:
        found = series.table(runs, names.layer(names.BALANCE_MAX_VIO, index), analysis.step)
        if found is None or (rows and not np.array_equal(rows[0][0], found[0])):
            return None
        rows.append((found[0], found[1].mean(0)))
    if not rows or len(rows[0][0]) < 2:
        return None
    filled = np.arange(layers[0], layers[-1] + 1)  # a dense layer between routed ones stays blank
    values_LN = np.full((len(filled), len(rows[0][0])), np.nan)
    for index, (_, values_N) in zip(layers, rows, strict=True):
        values_LN[index - layers[0]] = values_N
    return filled, rows[0][0], values_LN
