"""Load over steps and layers with the sampling floor; the biases that keep it even."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.colors import LogNorm

from k3lab.diagnostics.balance_metrics import CAPACITIES
from k3lab.diagnostics.figures.history import History
from k3lab.diagnostics.snapshot import Snapshot
from k3lab.plotting import (
    BLACK,
    BLUE,
    HEAT,
    SKY,
    VERMILLION,
    canvas,
    dots,
    edges,
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


def draw_load(history: History, file: Path) -> bool:
    """Draw MaxVio of the worst layer and of every layer over steps; returns whether there was any."""
    first = history.first_step(names.BALANCE_MAX_VIO)
    table, worst = history.layers(names.BALANCE_MAX_VIO, first), history.line(names.BALANCE_MAX_VIO, first)
    if table is None or worst is None:
        return False
    floor = history.line(names.BALANCE_MAX_VIO_FLOOR, first)
    positive = table.values_LN[np.isfinite(table.values_LN) & (table.values_LN > 0)]
    ground = float(floor.values_N[-1]) if floor is not None else 0.0
    low = float(min([np.quantile(positive, 0.02), *([0.7 * ground] if ground else [])])) if len(positive) else 0.01
    high = max(float(positive.max()) if len(positive) else 1.0, 1.5 * ground, 1.01 * low)
    title = "Load balance: how far the busiest expert of a layer is above its share (MaxVio; 0 is even)"
    with canvas(3.9 + 0.12 * min(len(table.layers_L), 16), file, title) as figure:
        over, heat = figure.subplots(2, 1, sharex=True, height_ratios=[1, 0.9 + 0.06 * min(len(table.layers_L), 16)])
        over.plot(worst.steps_N, worst.values_N, color=BLUE, label="worst layer", **dots(len(worst.steps_N)))
        if floor is not None:
            label = f"sampling floor: even load by chance alone ({ground:.2g})"
            over.plot(floor.steps_N, floor.values_N, color=BLACK, ls=":", label=label, **dots(len(floor.steps_N)))
        log_scale(over)
        over.set_ylabel("MaxVio (log scale)")
        over.legend(loc="upper right", ncols=2)
        layers = np.arange(table.layers_L[0], table.layers_L[-1] + 1)  # a dense layer between routed ones stays blank
        values_LN = np.full((len(layers), len(table.steps_N)), np.nan)
        values_LN[table.layers_L - layers[0]] = table.values_LN.clip(low)
        mesh = heat.pcolormesh(edges(table.steps_N), edges(layers), values_LN, cmap=HEAT, norm=LogNorm(low, high))
        heat.invert_yaxis()
        heat.grid(False)
        heat.set_xlabel("optimizer step")
        heat.set_ylabel("decoder layer")
        whole_numbers(heat.xaxis)
        heat.set_yticks(spread_out(list(layers), 8))
        bar = figure.colorbar(mesh, ax=heat, pad=0.01, aspect=16)
        plain_log(bar.ax.yaxis)
        bar.set_label("MaxVio (log scale)")
        if ground:
            bar.ax.axhline(ground, color=VERMILLION, lw=2.2)
            bar.ax.annotate(
                "floor",
                (0, ground),
                xytext=(-4, 0),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=8.8,
                color=VERMILLION,
            )
    return True


def draw_biases(history: History, file: Path) -> bool:
    """Draw the quantiles over experts of every layer's bias over steps; returns whether there was any."""
    tables = [history.layers(name) for name in names.BALANCE_BIAS_QUANTILES.values()]
    if any(t is None for t in tables):
        return False
    found = [t for t in tables if t is not None]
    layers = list(found[0].layers_L)
    shown = spread_out(layers)
    columns = min(4, len(shown))
    title = "Router biases over training" + some_of(len(shown), len(layers), "layers")
    with canvas(1.15 + 1.75 * -(-len(shown) // columns), file, title) as figure:
        axes = grid(figure, len(shown), columns)
        for axis, layer in zip(axes, shown, strict=True):
            row = layers.index(layer)
            low, q25, middle, q75, high = (t.values_LN[row] for t in found)
            steps = found[0].steps_N
            axis.axhline(0, color=BLACK, lw=0.8)
            axis.fill_between(steps, low, high, color=SKY, alpha=0.35, lw=0, label="smallest to largest expert")
            axis.fill_between(steps, q25, q75, color=BLUE, alpha=0.45, lw=0, label="middle half of the experts")
            axis.plot(steps, middle, color=BLACK, label="median expert", **dots(len(steps)))
            axis.set_title(f"decoder layer {layer}")
            whole_numbers(axis.xaxis, 4)
        label_below(axes, columns, "optimizer step")
        figure.supylabel("bias (in units of the score)", fontsize=9.5)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=3)
    return True


def draw_experts(snapshot: Snapshot, file: Path) -> bool:
    """Draw the bias of every expert at the last measurement, in order of size within its layer."""
    if not snapshot.biases:
        return False
    layers = list(snapshot.biases)
    title = f"Router bias of every expert after {snapshot.step:,} steps, in order of size within a layer"
    with canvas(3.1, file, title) as figure:
        axis = figure.subplots()
        axis.axhline(0, color=BLACK, lw=0.8)
        for place, layer in enumerate(layers):
            ordered_E = snapshot.biases[layer].double().sort().values.numpy()
            across_E = place + 0.8 * ((np.arange(len(ordered_E)) + 0.5) / len(ordered_E) - 0.5)
            axis.plot(across_E, ordered_E, "o-", ms=3.4 if len(ordered_E) <= 64 else 1.2, lw=0.7, color=BLUE)
        step = max(1, len(layers) // 16)
        axis.set_xticks(range(0, len(layers), step), [str(i) for i in layers[::step]])
        axis.set_xlabel("decoder layer; within it, experts from the smallest to the largest bias")
        axis.set_ylabel("bias (in units of the score)")
    return True


def draw_drops(history: History, file: Path) -> bool:
    """Draw the share of assignments beyond a capacity over steps, worst layer and each layer."""
    panels = [(f, history.layers(names.drop_rate(f), 1), history.line(names.drop_rate(f), 1)) for f in CAPACITIES]
    if any(table is None or line is None for _, table, line in panels):
        return False
    title = "Assignments that experts of a fixed capacity would drop"
    with canvas(3.0, file, title) as figure:
        axes = grid(figure, len(panels), len(panels))
        for axis, (factor, table, line) in zip(axes, panels, strict=True):
            assert table is not None
            assert line is not None
            tones = shades(len(table.layers_L))
            style = thin(len(tones)) | dots(len(table.steps_N))
            for row, layer in enumerate(table.layers_L):
                few = len(table.layers_L) <= 8
                label = f"layer {layer}" if few or row in (0, len(table.layers_L) - 1) else None
                axis.plot(table.steps_N, 100 * table.values_LN[row], color=tones[row], label=label, **style)
            worst = {"color": VERMILLION, "ls": "--", "label": "worst layer", **dots(len(line.steps_N))}
            axis.plot(line.steps_N, 100 * line.values_N, **worst)
            axis.set_title(f"capacity {factor:g} × the mean load")
            from_zero(axis)
            whole_numbers(axis.xaxis)
            axis.set_xlabel("optimizer step")
        axes[0].set_ylabel("dropped assignments (%)")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=6)
    return True
