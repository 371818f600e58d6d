"""Figures of a checkpoint's routing: load, drops, experts that go together, tokens that go to which."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm

from k3lab.diagnostics.routing import Tally, lift_of_classes, lift_of_pairs
from k3lab.plotting import (
    BLACK,
    DIVERGING,
    GREY,
    VERMILLION,
    canvas,
    from_zero,
    grid,
    label_below,
    shades,
    some_of,
    spread_out,
    whole_numbers,
)
from k3lab.tracking import names

MOST_MAPS = 6
REACH = 8.0  # lifts beyond 8 and 1/8 look alike


def draw_all(folder: Path, metrics: Mapping[str, float], data: Mapping[str, Any], tallies: dict[int, Tally]) -> None:
    """Draw every figure of the study."""
    draw_load(metrics, data, folder / "load.png")
    draw_classes(metrics, data, tallies, folder / "specialisation.png")
    if data["top_k"] > 1:
        draw_pairs(metrics, data["top_k"], tallies, folder / "coactivation.png")


def draw_load(metrics: Mapping[str, float], data: Mapping[str, Any], file: Path) -> None:
    """Draw the load of every expert in order, and the share of assignments dropped at each capacity."""
    layers, load_LE = data["layers"], np.array(data["load"], dtype=float)
    tones = shades(len(layers))
    with canvas(3.5, file, f"Load over held-out data ({data['assignments']:,} assignments a layer)") as figure:
        load, drops = figure.subplots(1, 2)
        known = {0, len(layers) - 1} if len(layers) > 8 else set(range(len(layers)))
        for row, layer in enumerate(layers):
            label = f"layer {layer}" if row in known else None
            share_E = np.sort(load_LE[row])[::-1] / load_LE[row].mean()
            load.plot(np.arange(1, len(share_E) + 1), share_E, color=tones[row], lw=1.3, label=label)
            drops.plot(
                data["capacities"], 100 * np.array(data["drop_rate"][row]), "o-", ms=3.5, color=tones[row], lw=1.3
            )
        load.axhline(1, color=BLACK, lw=0.8)
        floor = metrics.get(names.BALANCE_MAX_VIO_FLOOR)
        if floor is not None:
            label = "busiest expert of an even router, by chance"
            load.axhline(1 + floor, color=VERMILLION, ls=":", lw=1.6, label=label)
        from_zero(load)
        from_zero(drops)
        load.set_xlabel("experts from the busiest to the idlest")
        load.set_ylabel("load (1 = even share)")
        whole_numbers(load.xaxis)
        drops.set_xlabel("capacity of an expert (1 = even share of a batch)")
        drops.set_ylabel("dropped assignments (%)")
        handles, labels = load.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=6)


def draw_classes(metrics: Mapping[str, float], data: Mapping[str, Any], tallies: dict[int, Tally], file: Path) -> None:
    """Draw which classes of tokens each expert gets more or less of than its share."""
    shown = spread_out(list(tallies), MOST_MAPS)
    classes_CE = next(iter(tallies.values())).classes_CE
    share_C = 100 * (classes_CE.sum(1) / classes_CE.sum()).numpy()
    seen = np.flatnonzero(share_C > 0)
    labels = [f"{data['classes'][c]} ({share_C[c]:.1f} %)" for c in seen]
    columns = 2 if len(shown) > 1 else 1
    rows = -(-len(shown) // columns)
    title = "Kinds of tokens that an expert gets more (orange) or less (violet) of; what explains the choice of expert"
    title += some_of(len(shown), len(tallies), "layers")
    with canvas(1.1 + rows * (0.6 + 0.2 * len(labels)), file, title) as figure:
        axes = grid(figure, len(shown), columns)
        for axis, layer in zip(axes, shown, strict=True):
            lift_CE = lift_of_classes(tallies[layer].classes_CE[seen]).numpy().clip(1 / REACH, REACH)
            norm = LogNorm(1 / REACH, REACH)
            image = axis.imshow(lift_CE, cmap=DIVERGING, norm=norm, aspect="auto", interpolation="nearest")
            axis.grid(False)
            share = metrics[names.layer(names.ROUTING_SPECIALISATION, layer)]
            token = metrics.get(names.layer(names.ROUTING_TOKEN_SPECIALISATION, layer))
            more = f", token {100 * token:.0f} %" if token is not None else ""
            axis.set_title(f"layer {layer}: kind explains {100 * share:.0f} %{more}")
            axis.set_yticks(range(len(labels)), labels)
            whole_numbers(axis.xaxis)
        label_below(axes, columns, "expert")
        _lift_bar(figure, image, axes)


def draw_pairs(metrics: Mapping[str, float], top_k: int, tallies: dict[int, Tally], file: Path) -> None:
    """Draw which experts share more or fewer tokens than their loads alone would give."""
    shown = spread_out(list(tallies), MOST_MAPS)
    columns = min(3, len(shown))
    title = "Experts that are chosen together, against chance" + some_of(len(shown), len(tallies), "layers")
    with canvas(1.0 + 2.75 * -(-len(shown) // columns), file, title) as figure:
        axes = grid(figure, len(shown), columns)
        chance = metrics[names.ROUTING_COACTIVATION_CHANCE]
        for axis, layer in zip(axes, shown, strict=True):
            lift_EE = lift_of_pairs(tallies[layer].pairs_EE, top_k).numpy().clip(1 / REACH, REACH)
            norm = LogNorm(1 / REACH, REACH)
            image = axis.imshow(lift_EE, cmap=DIVERGING, norm=norm, interpolation="nearest")
            axis.grid(False)
            axis.set_facecolor(GREY)
            share = metrics[names.layer(names.ROUTING_COACTIVATION, layer)]
            axis.set_title(f"layer {layer}: closest partner {100 * share:.0f} %\n(by chance {100 * chance:.0f} %)")
            whole_numbers(axis.xaxis)
            whole_numbers(axis.yaxis)
        label_below(axes, columns, "expert")
        for axis in axes[::columns]:
            axis.set_ylabel("expert")
        _lift_bar(figure, image, axes)


def _lift_bar(figure: Any, image: Any, axes: list[Any]) -> None:
    bar = figure.colorbar(image, ax=axes, pad=0.01, aspect=26, ticks=[0.125, 0.25, 0.5, 1, 2, 4, 8])
    bar.ax.set_yticklabels(["≤ ⅛", "¼", "½", "1", "2", "4", "≥ 8"])
    bar.ax.minorticks_off()
    bar.set_label("times what chance gives (log scale)")
