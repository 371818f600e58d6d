"""Figures of a checkpoint's forgetting: spectra by head, stuck channels, half-lives by kind of token."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm

from k3lab.diagnostics.decay import A_DECADE, LOW, Forgetting
from k3lab.plotting import (
    DIVERGING,
    GREEN,
    HEAT,
    VERMILLION,
    canvas,
    from_zero,
    plain_log,
    shades,
    some_of,
    spread_out,
)

COARSE = 5  # fine bins in one that is drawn: ten a power of ten
MOST_LAYERS = 8


def draw_all(folder: Path, data: Mapping[str, Any], found: dict[int, Forgetting]) -> None:
    """Draw every figure of the study."""
    draw_spectra(data, found, folder / "spectrum.png")
    draw_stuck(found, folder / "stuck.png")
    draw_classes(data, folder / "token_classes.png")


def draw_spectra(data: Mapping[str, Any], found: dict[int, Forgetting], file: Path) -> None:
    """Draw a row a head: how its half-lives, over tokens and channels, are spread."""
    shown = spread_out(list(found), MOST_LAYERS)
    maps = [found[i].by_head_HB.view(len(found[i].by_head_HB), -1, COARSE).sum(-1).numpy() for i in shown]
    shares = [100 * m / m.sum(1, keepdims=True) for m in maps]
    used = np.flatnonzero(sum(m.sum(0) for m in maps))
    borders = 10 ** (LOW + np.arange(len(maps[0][0]) + 1) * COARSE / A_DECADE)
    heads = [len(m) for m in maps]
    title = "Half-life spectrum by head, over held-out tokens" + some_of(len(shown), len(found), "recurrent layers")
    with canvas(1.2 + sum(0.35 + min(1.6, 0.16 * h + 0.15) for h in heads), file, title) as figure:
        axes = figure.subplots(len(shown), 1, sharex=True, height_ratios=[min(10, h + 1) for h in heads], squeeze=False)
        for axis, layer, share_HB in zip(axes[:, 0], shown, shares, strict=True):
            top = max(s.max() for s in shares)
            mesh = axis.pcolormesh(borders, np.arange(len(share_HB) + 1) - 0.5, share_HB, cmap=HEAT, vmin=0, vmax=top)
            axis.invert_yaxis()
            axis.grid(False)
            axis.set_ylabel(f"layer {layer}\nhead")
            axis.set_yticks(spread_out(range(len(share_HB)), 5))
            bound = found[layer].bound
            if bound is not None:
                axis.axvline(math.log(2) / -bound, color=VERMILLION, lw=1.8, label="shortest that the bound allows")
            axis.axvline(data["sequence"], color=GREEN, ls="--", lw=1.8, label=f"sequence, {data['sequence']} tokens")
        last = axes[-1, 0]
        last.set_xscale("log")
        ends = [math.log(2) / -f.bound for f in found.values() if f.bound]
        last.set_xlim(
            min([borders[used[0]], *[0.8 * e for e in ends]]), max(borders[used[-1] + 1], 1.3 * data["sequence"])
        )
        plain_log(last.xaxis)
        last.tick_params(axis="x", which="minor", labelbottom=False)
        last.set_xlabel("half-life (tokens, log scale)")
        figure.colorbar(mesh, ax=list(axes[:, 0]), pad=0.01, aspect=26).set_label("channels × tokens of a head (%)")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=2)


def draw_stuck(found: dict[int, Forgetting], file: Path) -> None:
    """Draw, channel by channel in order, the share of tokens at which it is at the bound, and dead."""
    tones = shades(len(found))
    with canvas(
        3.4, file, "Stuck channels: the share of held-out tokens at which a channel is at either end"
    ) as figure:
        bound, dead = figure.subplots(1, 2, sharey=True)
        known = {0, len(found) - 1} if len(found) > 8 else set(range(len(found)))
        for row, (layer, f) in enumerate(found.items()):
            label = f"layer {layer}" if row in known else None
            for axis, tokens_HK in ((bound, f.at_bound_HK if f.bound is not None else None), (dead, f.dead_HK)):
                if tokens_HK is not None:
                    share = 100 * np.sort((tokens_HK / f.tokens).flatten().numpy())[::-1]
                    across = 100 * (np.arange(len(share)) + 1) / len(share)
                    axis.plot(across, share, color=tones[row], label=label)
        if all(f.bound is None for f in found.values()):
            bound.text(0.5, 0.5, "the decay has no bound", transform=bound.transAxes, ha="center", va="center")
        bound.set_title("at the bound: |g| ≥ 99 % of it")
        dead.set_title("dead: |g| < 1e-6, never forgets")
        bound.set_ylabel("tokens (%)")
        for axis in (bound, dead):
            from_zero(axis)
            axis.set_xlabel("channels of the layer, the most stuck first (%)")
        handles, labels = dead.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=8)


def draw_classes(data: Mapping[str, Any], file: Path) -> None:
    """Draw the median half-life that each layer has on each kind of token, against that on all tokens."""
    layers = list(data["layers"])
    life_LC = np.array([data["layers"][i]["half_life_by_class"] for i in layers], dtype=float)
    seen = np.flatnonzero(np.isfinite(life_LC).any(0))
    life_LC = life_LC[:, seen]
    ratio_LC = life_LC / np.array([[data["layers"][i]["half_life"]] for i in layers])
    reach = max(1.2, float(np.nanmax(np.maximum(ratio_LC, 1 / ratio_LC))))
    title = "Median half-life by kind of token, in tokens; colour: against that of the layer on all tokens"
    with canvas(1.9 + min(5.0, 0.32 * len(layers)), file, title) as figure:
        axis, norm = figure.subplots(), LogNorm(1 / reach, reach)
        image = axis.imshow(ratio_LC, cmap=DIVERGING, norm=norm, aspect="auto", interpolation="nearest")
        axis.grid(False)
        labels = [data["classes"][c] for c in seen]
        axis.set_xticks(range(len(labels)), labels, rotation=25, ha="right", rotation_mode="anchor")
        shown = spread_out(range(len(layers)), 24)
        axis.set_yticks(shown, [layers[i] for i in shown])
        axis.set_ylabel("decoder layer")
        if len(layers) <= 24:
            for (row, column), value in np.ndenumerate(life_LC):
                far = abs(math.log(ratio_LC[row, column])) > 0.6 * math.log(reach)
                axis.text(column, row, f"{value:.3g}", ha="center", va="center", color="white" if far else "black")
        bar = figure.colorbar(image, ax=axis, pad=0.01, aspect=20, ticks=[1 / reach, 1, reach])
        bar.ax.set_yticklabels([f"{1 / reach:.2g}", "1", f"{reach:.2g}"])
        bar.ax.minorticks_off()
        bar.set_label("times the layer's own")
