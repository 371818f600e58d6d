"""Figures of a checkpoint's depth: worth of sublayers, similarity of representations, what the head reads early."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.patches import Patch

from k3lab.diagnostics.figures.depth import MARKS, PROFILE, draw_sources, plot_by_sublayer
from k3lab.diagnostics.figures.history import History
from k3lab.plotting import (
    BLACK,
    BLUE,
    GREY,
    HEAT,
    ORANGE,
    canvas,
    grid,
    label_below,
    numbers_in,
    spread_out,
    whole_numbers,
)
from k3lab.tracking import names

MOST_LABELS = 28  # sublayers that can be told by name below an axis


def draw_all(folder: Path, metrics: Mapping[str, float], data: Mapping[str, Any]) -> None:
    """Draw every figure of the study."""
    draw_ablation(metrics, data, folder / "ablation.png")
    draw_cka(data, folder / "cka.png")
    draw_lens(metrics, folder / "lens.png")
    draw_profile(metrics, folder / "profile.png")
    history = History({name: {0: value} for name, value in data["source_weights"].items()})
    draw_sources(history.sources(), folder / "sources.png", "on held-out data")


def by_index(metrics: Mapping[str, float], name: str, output: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Indices and values of a metric by sublayer; with ``output`` also the output's, past the last sublayer."""
    pattern = re.compile(re.escape(f"{name}/") + r"layer_(\d+)")
    found = {int(m.group(1)): v for n, v in metrics.items() if (m := pattern.fullmatch(n))}
    if output:
        found[max(found) + 1] = metrics[names.depth(name, None)]
    return np.array(sorted(found), dtype=int), np.array([found[i] for i in sorted(found)])


def draw_ablation(metrics: Mapping[str, float], data: Mapping[str, Any], file: Path) -> None:
    """Draw what the loss rises by when a sublayer adds nothing."""
    index_L, change_L = by_index(metrics, names.DEPTH_ABLATION_LOSS)
    error_L = np.array([math.nan if e is None else e for e in data["ablation_standard_error"]], dtype=float)
    title = f"What each sublayer is worth: rise of the loss without it ({metrics[names.VAL_LOSS]:.3f} nats with all)"
    with canvas(3.6, file, title) as figure:
        axis = figure.subplots()
        tones = [BLUE if i % 2 == 0 else ORANGE for i in index_L]
        bars = 1.96 * np.nan_to_num(error_L)
        axis.bar(index_L, change_L, 0.75, color=tones, yerr=bars, ecolor=BLACK, error_kw={"lw": 1, "capsize": 2})
        axis.axhline(0, color=BLACK, lw=0.8)
        axis.set_ylabel("rise of the loss (nats a token)")
        axis.grid(axis="x", visible=False)
        if len(index_L) <= MOST_LABELS:
            labels = [f"{i}\n{name}" for i, name in zip(index_L, data["sublayers"], strict=True)]
            size = 8.8 if len(index_L) <= 10 else 7
            axis.set_xticks(index_L, labels, fontsize=size, rotation=0 if len(index_L) <= 10 else 60)
            for i, value, bar in zip(index_L, change_L, bars, strict=True):
                axis.annotate(f"{value:.2g}", (i, max(value + bar, 0)), (0, 2), textcoords="offset points", ha="center")
        handles: list[Any] = [Patch(color=BLUE, label="mixer"), Patch(color=ORANGE, label="feed-forward")]
        axis.legend(handles=handles, loc="upper right", title="bar: 95 % interval over sequences")
        axis.set_xlabel("sublayer")


def draw_cka(data: Mapping[str, Any], file: Path) -> None:
    """Draw the similarity of what every two sublayers read."""
    cka_LL = np.array([[math.nan if v is None else v for v in row] for row in data["linear_cka"]], dtype=float)
    count = len(cka_LL)
    labels = [*map(str, range(count - 1)), "output"]
    with canvas(
        1.4 + min(5.2, 0.36 * count),
        file,
        "Similarity of representations: linear CKA of the inputs of every two sublayers",
    ) as figure:
        axis = figure.subplots()
        image = axis.imshow(cka_LL, cmap=HEAT, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        axis.grid(False)
        shown = spread_out(range(count), 24)
        axis.set_xticks(shown, [labels[i] for i in shown], rotation=90 if count > 12 else 0)
        axis.set_yticks(shown, [labels[i] for i in shown])
        axis.set_xlabel("input of sublayer")
        axis.set_ylabel("input of sublayer")
        if count <= 14:
            numbers_in(axis, cka_LL, 0.5, "{:.2f}")
        figure.colorbar(image, ax=axis, pad=0.01, aspect=24).set_label("linear CKA (1 = same up to a rotation)")


def draw_lens(metrics: Mapping[str, float], file: Path) -> None:
    """Draw how well the head does on what each sublayer reads."""
    title = "Logit lens: the final norm and the head on what each sublayer reads"
    with canvas(3.2, file, title) as figure:
        axes = grid(figure, 2, 2, share=False)
        for axis, name, scale in ((axes[0], names.DEPTH_LENS_LOSS, 1), (axes[1], names.DEPTH_LENS_AGREEMENT, 100)):
            index, values = by_index(metrics, name, output=True)
            plot_by_sublayer(axis, index[:-1], scale * values[:-1], BLUE)
            axis.plot(index[-2:], scale * values[-2:], color=BLUE, lw=1.2)
            axis.plot(index[-1], scale * values[-1], "D", color=BLACK, ms=6)
            axis.axhline(scale * values[-1], color=GREY, lw=0.8, ls=":")
            axis.set_xlabel("sublayer that reads it")
            shown = spread_out(list(index[:-1]), 9)
            axis.set_xticks([*shown, index[-1]], [*map(str, shown), "output"])
        axes[0].set_ylabel("loss (nats a token)")
        axes[1].set_ylabel("agrees with the model's guess (%)")


def draw_profile(metrics: Mapping[str, float], file: Path) -> None:
    """Draw every depth metric by sublayer."""
    sizes = ((names.DEPTH_OUTPUT_RMS, "output RMS"), (names.DEPTH_GRAD_RMS, "gradient RMS (nats)"))
    found = [(by_index(metrics, name), label) for name, label in (*sizes, *PROFILE)]
    found = [(pair, label) for pair, label in found if len(pair[0])]
    with canvas(1.1 + 1.75 * -(-len(found) // 3), file, "Along the depth, on held-out data") as figure:
        axes = grid(figure, len(found), 3, share=False)
        for axis, ((index, values), label) in zip(axes, found, strict=True):
            plot_by_sublayer(axis, index, values, BLUE)
            axis.set_title(label)
            whole_numbers(axis.xaxis)
        label_below(axes, 3, "sublayer")
        figure.legend(handles=MARKS, loc="outside lower left", ncols=2)
