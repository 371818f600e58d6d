"""Learning curves: the loss over steps, and the distance from the baseline over steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from k3lab.plotting import BLACK, GREY, canvas, grid
from k3lab.report.analysis import Analysis
from k3lab.report.arms import Arm
from k3lab.report.document import Part, Picture, Strong
from k3lab.report.figures import series
from k3lab.report.figures.style import TONES, chosen, colours, dashes, legend, wrap
from k3lab.report.metrics import LOWER, metric
from k3lab.tracking import names

TOGETHER = 4  # arms that one pair of axes can hold with their bands
SMOOTH = 0.05  # of the steps
FROM = 0.3  # of the steps: what comes before may leave the picture, or it would hide the rest


def draw(analysis: Analysis, name: str, folder: Path, file: str) -> Picture | None:
    """Draw one metric over steps: few arms together, many each beside the baseline."""
    window = max(1, round(SMOOTH * analysis.step)) if name == names.TRAIN_LOSS else 1
    arms = [arm for arm in analysis.arms if _points(analysis, arm, name, window) > 1]
    if not arms:
        return None
    shown = chosen(analysis, arms)
    known, palette, style = metric(name), colours(analysis), dashes(analysis)
    base = analysis.baseline if analysis.baseline in arms else None
    apart = len(shown) > TOGETHER and base is not None
    panels = [arm for arm in shown if arm is not base] if apart else []
    columns = 4 if len(panels) > 6 else 3
    height = 1.0 + 1.75 * -(-len(panels) // columns) if apart else 3.6
    with canvas(height, folder / f"{file}.png") as figure:
        axes = grid(figure, len(panels), columns) if apart else [figure.subplots()]
        for i, axis in enumerate(axes):
            for arm in [base, panels[i]] if apart else shown:
                assert arm is not None
                band = series.spread(analysis, arm, name, window)
                assert band is not None
                axis.fill_between(band.steps, band.low, band.high, color=palette[arm.name], alpha=0.18, lw=0)
                axis.plot(band.steps, band.mean, color=palette[arm.name], ls=style[arm.name])
            if apart:
                axis.set_title(wrap(panels[i].short, 84 // columns), fontsize=8.8, color=palette[panels[i].name])
        _limits(axes, analysis, shown, name, window)
        if apart:
            figure.supxlabel("optimizer step", fontsize=9.5)
            figure.supylabel(known.label, fontsize=9.5)
        else:
            axes[0].set_xlabel("optimizer step")
            axes[0].set_ylabel(known.label)
            legend(figure, analysis, shown)
    caption: list[Part] = [Strong(f"{known.title.capitalize()}, step by step. ")]
    caption.append("Line: mean over seeds; band: smallest to largest seed.")
    if apart and base is not None:
        caption.append(f" Grey, in every panel: the baseline, {base.short}.")
    if window > 1:
        caption.append(f" Each point is the mean of the last {window} steps.")
    caption.append(_left_out(arms, shown))
    return Picture(file, f"{known.title} over optimizer steps for {len(shown)} arms", caption)


def draw_gaps(analysis: Analysis, name: str, folder: Path, file: str) -> Picture | None:
    """Draw each arm's paired difference from the baseline over steps."""
    bands = {arm.name: series.gap(analysis, arm, name) for arm in analysis.others}
    arms = [arm for arm in analysis.others if (b := bands[arm.name]) is not None and len(b.steps) > 1]
    if not arms or analysis.baseline is None:
        return None
    shown, known = chosen(analysis, arms), metric(name)
    columns = 4 if len(shown) > 6 else min(3, len(shown))
    tones = {d.arm.name: TONES.get(d.judgement, GREY) for d in analysis.differences.get(name, [])}
    with canvas(1.1 + 1.75 * -(-len(shown) // columns), folder / f"{file}.png") as figure:
        axes = grid(figure, len(shown), columns)
        for axis, arm in zip(axes, shown, strict=True):
            band, colour = bands[arm.name], tones.get(arm.name, GREY)
            assert band is not None
            late = band.steps >= FROM * analysis.step
            axis.axhline(0, color=BLACK, lw=1)
            axis.fill_between(band.steps[late], band.low[late], band.high[late], color=colour, alpha=0.22, lw=0)
            axis.plot(band.steps[late], band.mean[late], color=colour, marker="o", ms=2.6 if late.sum() < 60 else 0)
            axis.set_title(wrap(arm.short, 84 // columns), fontsize=8.8)
        _gap_limits(axes, [bands[a.name] for a in shown], analysis.step)
        figure.supxlabel("optimizer step", fontsize=9.5)
        unit = f" ({known.step_unit})" if known.step_unit else ""
        figure.supylabel(f"arm − baseline{unit}", fontsize=9.5)
    hint = {LOWER: " Below zero is better.", 0: ""}.get(known.better, " Above zero is better.")
    caption: list[Part] = [
        Strong("The difference over training. "),
        f"{known.title.capitalize()} of each arm minus the baseline ({analysis.baseline.short}), seed by seed",
        "; band: 95 % interval of the mean." if analysis.seeds > 1 else "; one seed: no interval.",
        f"{hint} Blue ends better, orange-red worse, grey undecided.",
        _left_out(arms, shown),
    ]
    return Picture(file, f"Difference in {known.title} from the baseline over steps", caption)


def _points(analysis: Analysis, arm: Arm, name: str, window: int) -> int:
    band = series.spread(analysis, arm, name, window)
    return 0 if band is None else len(band.steps)


def _limits(axes: list[Axes], analysis: Analysis, arms: list[Arm], name: str, window: int) -> None:
    """Scale to the values after the first steps, whose fall would flatten everything that follows."""
    lows, highs = [], []
    for arm in arms:
        band = series.spread(analysis, arm, name, window)
        assert band is not None
        late = band.steps >= FROM * analysis.step
        if late.any():
            lows += [np.nanmin(band.low[late])]
            highs += [np.nanmax(band.high[late])]
    if lows and np.isfinite([*lows, *highs]).all():
        room = 0.06 * (max(highs) - min(lows)) or 0.01
        for axis in axes:
            axis.set_ylim(min(lows) - room, max(highs) + room)


def _gap_limits(axes: list[Axes], bands: list[series.Band | None], step: int) -> None:
    """Scale to the means, with room for intervals of a like size: one wide interval must not flatten all others."""
    reach = []
    for band in bands:
        assert band is not None
        late = band.steps >= FROM * step
        half = band.high[late] - band.mean[late]
        reach.append(float(np.nanmax(np.abs(band.mean[late]) + np.minimum(half, np.nanmedian(half) * 2))))
    top = 1.1 * max(reach) if reach else 0.0
    if np.isfinite(top) and top > 0:
        for axis in axes:
            axis.set_ylim(-top, top)


def _left_out(arms: list[Arm], shown: list[Arm]) -> str:
    return f" The first {len(shown)} of {len(arms)} arms." if len(shown) < len(arms) else ""
