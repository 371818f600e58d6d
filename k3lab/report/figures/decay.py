"""Forgetting: half-lives over training and by layer, and the channels that are stuck at either end."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from matplotlib.lines import Line2D

from k3lab.plotting import GREY, canvas, log_scale, whole_numbers
from k3lab.report.analysis import Analysis
from k3lab.report.arms import Arm
from k3lab.report.document import Part, Picture, Strong
from k3lab.report.figures import series
from k3lab.report.figures.style import chosen, colours, dashes, legend
from k3lab.tracking import names

_LAYER = re.compile(r"decay/layer_(\d+)/(\w+)")
SPREAD = 0.5  # of a layer's place on the axis, which the arms share out among them


def draw(analysis: Analysis, folder: Path, file: str) -> Picture | None:
    """Draw the median half-life over steps and by layer, and the shares of stuck channels over steps."""
    half = {arm.name: series.spread(analysis, arm, names.DECAY_HALF_LIFE_MEDIAN) for arm in analysis.arms}
    arms = [arm for arm in analysis.arms if half[arm.name] is not None]
    if not arms:
        return None
    shown, palette, style = chosen(analysis, arms), colours(analysis), dashes(analysis)
    with canvas(3.2 + 0.1 * len(shown), folder / f"{file}.png") as figure:
        over, layers, stuck = figure.subplots(1, 3)
        spectrum = False
        for place, arm in enumerate(shown):
            colour, line = palette[arm.name], style[arm.name]
            band = half[arm.name]
            assert band is not None
            over.fill_between(band.steps, band.low, band.high, color=colour, alpha=0.12, lw=0)
            over.plot(band.steps, band.mean, color=colour, ls=line)
            shift = SPREAD * ((place + 0.5) / len(shown) - 0.5)
            index_L, value_L = _by_layer(analysis, arm, names.DECAY_HALF_LIFE_MEDIAN)
            layers.plot(index_L + shift, value_L, "o", ms=4, color=colour)
            low_L, high_L = (
                _by_layer(analysis, arm, n)[1] for n in (names.DECAY_HALF_LIFE_Q10, names.DECAY_HALF_LIFE_Q90)
            )
            if len(low_L) == len(high_L) == len(index_L):
                spectrum = True
                layers.vlines(index_L + shift, low_L, high_L, color=colour, lw=1.6, alpha=0.7)
            for name, dash in ((names.DECAY_AT_BOUND_FRACTION, "-"), (names.DECAY_DEAD_FRACTION, ":")):
                if (share := series.spread(analysis, arm, name)) is not None:
                    stuck.plot(share.steps, share.mean, color=colour, ls=dash)
        for axis in (over, layers):
            log_scale(axis)
        over.set_ylabel("median half-life (tokens, log)")
        layers.set_ylabel("half-life of channels (tokens, log)" if spectrum else "median half-life (tokens, log)")
        over.set_xlabel("optimizer step")
        layers.set_xlabel("decoder layer (0 = first)")
        whole_numbers(layers.xaxis)
        stuck.set_xlabel("optimizer step")
        stuck.set_ylabel("share of channels (%)")
        stuck.set_ylim(0, max(1.0, stuck.get_ylim()[1]))
        extra = [
            Line2D([], [], color=GREY, ls="-", label="right: at the bound"),
            Line2D([], [], color=GREY, ls=":", label="right: never forget"),
        ]
        legend(figure, analysis, shown, extra)
    caption: list[Part] = [
        Strong("How fast memory fades. "),
        "Left: tokens until half of a channel's content is gone, median over channels. Middle: the same by layer at "
        "the end",
        ", with a bar from the fastest tenth of the channels to the slowest. " if spectrum else ". ",
        "Right: channels that are stuck, either at the fastest decay allowed (solid) or without any (dotted).",
    ]
    return Picture(file, "Median half-life over steps and by layer, and shares of stuck channels", caption)


def _by_layer(analysis: Analysis, arm: Arm, metric: str) -> tuple[np.ndarray, np.ndarray]:
    values: dict[int, list[float]] = {}
    for run in analysis.usable[arm.name]:
        for name, found in run.series.items():
            if (m := _LAYER.fullmatch(name)) and names.layer(metric, int(m.group(1))) == name:
                keep = found.values[found.steps <= analysis.step]
                values.setdefault(int(m.group(1)), []).extend(keep[-1:].tolist())
    index = sorted(i for i, v in values.items() if v)
    return np.array(index, dtype=int), np.array([np.mean(values[i]) for i in index])
