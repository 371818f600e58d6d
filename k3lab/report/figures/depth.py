"""Along the depth: what each sublayer adds, how much it is taught, and which earlier outputs it reads."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from k3lab.plotting import HEAT, canvas, log_scale, whole_numbers
from k3lab.report.analysis import Analysis
from k3lab.report.arms import Arm
from k3lab.report.document import Part, Picture, Strong
from k3lab.report.figures.style import chosen, colours, dashes, legend, wrap
from k3lab.tracking import names

_SUBLAYER = re.compile(r"layer_(\d+)$")
_SOURCE = re.compile(rf"{names.DEPTH_SOURCE_WEIGHT}/(layer_(\d+)|{names.OUTPUT})/source_(\d+)$")
PANELS = (
    (names.DEPTH_OUTPUT_RMS, "output RMS\n(log scale)"),
    (names.DEPTH_GRAD_RMS, "gradient RMS at the output\n(log scale)"),
)
MOST_MAPS = 4


def draw_profile(analysis: Analysis, folder: Path, file: str) -> Picture | None:
    """Draw output and gradient RMS by sublayer at the last measurement."""
    profiles = {n: {arm.name: _profile(analysis, arm, n) for arm in analysis.arms} for n, _ in PANELS}
    arms = [arm for arm in analysis.arms if any(len(p[arm.name][0]) for p in profiles.values())]
    if not arms:
        return None
    shown, palette, style = chosen(analysis, arms), colours(analysis), dashes(analysis)
    with canvas(3.3 + 0.1 * len(shown), folder / f"{file}.png") as figure:
        for axis, (name, label) in zip(figure.subplots(1, 2), PANELS, strict=True):
            for arm in shown:
                index_L, value_L = profiles[name][arm.name]
                axis.plot(index_L, value_L, color=palette[arm.name], ls=style[arm.name], lw=1.3)
                for parity, marker in ((0, "o"), (1, "s")):
                    half = index_L % 2 == parity
                    axis.plot(index_L[half], value_L[half], marker, ms=4, color=palette[arm.name])
            log_scale(axis)
            axis.set_xlabel("sublayer (● mixer, ■ feed-forward)")
            axis.set_ylabel(label)
            whole_numbers(axis.xaxis)
        legend(figure, analysis, shown)
    caption: list[Part] = [
        Strong("Along the depth, at the end of training. "),
        "Left: size of what each sublayer adds. Right: size of the loss's gradient there, that is how much each depth "
        "is taught. Mean over seeds.",
    ]
    return Picture(file, "Output RMS and gradient RMS by sublayer", caption)


def draw_sources(analysis: Analysis, folder: Path, file: str) -> Picture | None:
    """Draw which sources each sublayer reads, for arms that attend over depth."""
    maps = {arm.name: _sources(analysis, arm) for arm in analysis.arms}
    having = [arm for arm in analysis.arms if maps[arm.name] is not None]
    arms = chosen(analysis, having, MOST_MAPS)
    if not arms:
        return None
    found = [m for arm in arms if (m := maps[arm.name]) is not None]
    rows, columns = max(len(m[0]) for m in found), max(m[1].shape[1] for m in found)
    across = len(arms) if columns <= 8 else min(2, len(arms))
    down = -(-len(arms) // across)
    with canvas(0.9 + down * min(6.5, 0.7 + 0.24 * rows), folder / f"{file}.png") as figure:
        axes = np.asarray(figure.subplots(down, across, squeeze=False)).ravel()
        for axis in axes[len(arms) :]:
            axis.set_visible(False)
        for axis, arm, (label_M, weight_MS) in zip(axes, arms, found, strict=False):
            image = axis.imshow(weight_MS, cmap=HEAT, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
            axis.set_title(wrap(arm.short, 96 // across), fontsize=8.8)
            axis.grid(False)
            axis.set_xticks(range(weight_MS.shape[1]))
            every = max(1, len(label_M) // 16)
            axis.set_yticks(range(0, len(label_M), every), label_M[::every])
            if weight_MS.shape[1] * across <= 24 and len(label_M) <= 26:
                for (m, s), value in np.ndenumerate(weight_MS):
                    if np.isfinite(value):
                        colour = "white" if value < 0.5 else "black"
                        axis.text(s, m, f"{100 * value:.0f}", ha="center", va="center", fontsize=8, color=colour)
        bar = figure.colorbar(image, ax=list(axes), pad=0.01, aspect=30)
        bar.set_label("share of what is read")
        sources = "source (0 = embedding, then blocks or sublayers in order; last: the running sum)"
        figure.supxlabel(sources, fontsize=9.5)
        figure.supylabel("reading sublayer", fontsize=9.5)
    caption: list[Part] = [
        Strong("What each sublayer reads, in per cent. "),
        "Attention over depth: each row is a sublayer, each column an earlier source; a row adds up to 100. Even "
        "numbers are mixers, odd ones feed-forward sublayers, “out” is the model's output. At the end of training, "
        "mean over seeds.",
        f" {len(arms)} of the {len(having)} arms that attend over depth." if len(arms) < len(having) else "",
    ]
    return Picture(file, "Heat map of attention over depth: sublayer by source", caption)


def _profile(analysis: Analysis, arm: Arm, name: str) -> tuple[np.ndarray, np.ndarray]:
    values: dict[int, list[float]] = {}
    for run in analysis.usable[arm.name]:
        for metric, series in run.series.items():
            if metric.startswith(f"{name}/") and (m := _SUBLAYER.search(metric)):
                keep = series.values[series.steps <= analysis.step]
                values.setdefault(int(m.group(1)), []).extend(keep[-1:].tolist())
    index = sorted(i for i, v in values.items() if v)
    return np.array(index, dtype=int), np.array([np.mean(values[i]) for i in index])


def _sources(analysis: Analysis, arm: Arm) -> tuple[list[str], np.ndarray] | None:
    """Return the reading sublayers [M] and their mean weights [M,S]; NaN where there is no such source."""
    values: dict[tuple[int, int], list[float]] = {}
    for run in analysis.usable[arm.name]:
        for metric, series in run.series.items():
            if m := _SOURCE.match(metric):
                keep = series.values[series.steps <= analysis.step]
                row = 1 << 30 if m.group(2) is None else int(m.group(2))
                values.setdefault((row, int(m.group(3))), []).extend(keep[-1:].tolist())
    if not values:
        return None
    rows = sorted({row for row, _ in values})
    weight_MS = np.full((len(rows), max(s for _, s in values) + 1), np.nan)
    for (row, source), found in values.items():
        if found:
            weight_MS[rows.index(row), source] = np.mean(found)
    return ["out" if row == 1 << 30 else str(row) for row in rows], weight_MS
