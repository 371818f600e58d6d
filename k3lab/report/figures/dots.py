"""The result at a glance: every seed, every arm's mean and interval, and its difference from the baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from k3lab.plotting import BLACK, BLUE, GREY, VERMILLION, canvas
from k3lab.report.analysis import Analysis
from k3lab.report.arms import Arm
from k3lab.report.document import Part, Picture, Strong
from k3lab.report.factorial import Factorial
from k3lab.report.figures.style import TONES, chosen, wrap
from k3lab.report.metrics import HIGHER, LOWER, metric


def draw(
    analysis: Analysis, factorial: Factorial | None, name: str, folder: Path, file: str, title: str = ""
) -> Picture | None:
    """Draw one metric, arm by arm from top to bottom in the order of the tables."""
    arms = chosen(analysis, [a for a in analysis.arms if analysis.estimate(a, name).n], 24)
    if not arms:
        return None
    switches = factorial.switches if factorial is not None else ()
    compare = analysis.baseline is not None and len(arms) > 1
    widths = [0.42 * len(switches) if switches else 0.0, 3.0, 2.2 if compare else 0.0]
    names = [arm.short for arm in arms]
    lines = 1 if switches else max(wrap(n).count("\n") + 1 for n in names)
    row = 0.3 if lines == 1 else 0.19 * lines + 0.1
    with canvas(1.25 + row * len(arms) + (0.45 if switches else 0), folder / f"{file}.png") as figure:
        shown = [w for w in widths if w]
        figure.set_layout_engine("constrained", wspace=0.03)
        axes = list(np.atleast_1d(figure.subplots(1, len(shown), sharey=True, width_ratios=shown)))
        if switches:
            _matrix(axes.pop(0), factorial, arms)
        _values(axes[0], analysis, name, arms)
        if compare:
            _differences(axes[1], analysis, name, arms)
        first = figure.axes[0]
        first.set_ylim(len(arms) - 0.4, -0.6)
        if not switches:
            labels = [wrap(a.short) + (" *" if a is analysis.baseline else "") for a in arms]
            first.set_yticks(range(len(arms)), labels)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    known = metric(name)
    caption: list[Part] = [
        Strong(f"{known.title.capitalize()} by arm. "),
        "Open circles are single seeds, the diamond is their mean, the bar its 95 % interval",
        "." if analysis.seeds > 1 else " (none with one seed).",
    ]
    if compare:
        caption.append(" Right: difference from the baseline, seed by seed; a bar across zero shows no difference.")
    if switches:
        on = ", ".join(f"{s.key}={s.on} (off: {s.off})" for s in switches)
        caption.append(f" Left: ● switched on, ○ off, for {on}. The first row is the baseline.")
    elif compare:
        caption.append(" * baseline.")
    return Picture(file, f"{known.title} of {len(arms)} arms with 95 % intervals", caption)


def _matrix(axis: Axes, factorial: Factorial | None, arms: list[Arm]) -> None:
    assert factorial is not None
    for column, switch in enumerate(factorial.switches):
        for row, arm in enumerate(arms):
            on = arm.config.get(switch.key, "—") == switch.on
            axis.plot(column, row, "o", ms=8, mfc=BLACK if on else "white", mec=BLACK if on else GREY, mew=1)
    ticks = [f"{s.key.split('.')[-1]}:\n{s.on}" if "." not in s.key else f"{s.key}\n{s.on}" for s in factorial.switches]
    axis.set_xticks(range(len(ticks)), ticks, rotation=40, ha="left", rotation_mode="anchor", fontsize=8.2)
    axis.xaxis.tick_top()
    axis.set_xlim(-0.6, len(ticks) - 0.4)
    axis.tick_params(length=0, labelleft=False)
    axis.grid(False)
    for spine in axis.spines.values():
        spine.set_visible(False)


def _values(axis: Axes, analysis: Analysis, name: str, arms: list[Arm]) -> None:
    known = metric(name)
    for row, arm in enumerate(arms):
        values = np.array(list(analysis.values(arm, name).values())) * known.scale
        estimate = analysis.estimate(arm, name)
        colour = BLACK if arm is analysis.baseline else BLUE
        if estimate.half is not None:
            low, high = estimate.low * known.scale, estimate.high * known.scale
            axis.plot([low, high], [row, row], color=colour, lw=2.2, solid_capstyle="butt")
        axis.plot(
            values,
            np.full(len(values), row),
            "o",
            mfc="white",
            mec=colour,
            ms=4.6,
            mew=1,
            alpha=0.9,
            zorder=3,
        )
        axis.plot(estimate.mean * known.scale, row, "D", color=colour, ms=5.4, zorder=4)
    _x_label(axis, known.label)
    axis.grid(axis="y", visible=False)


def _differences(axis: Axes, analysis: Analysis, name: str, arms: list[Arm]) -> None:
    known = metric(name)
    axis.axvline(0, color=BLACK, lw=1)
    reach = 0.0
    for row, arm in enumerate(arms):
        if arm is analysis.baseline:
            axis.text(0, row, " baseline", va="center", ha="left", fontsize=8.2, color=GREY)
            continue
        difference = analysis.difference(arm, name)
        estimate, colour = difference.estimate, TONES.get(difference.judgement, GREY)
        if not estimate.n:
            continue
        low, high = estimate.low * known.scale, estimate.high * known.scale
        reach = max(reach, abs(low), abs(high))
        axis.plot([low, high], [row, row], color=colour, lw=2.2, solid_capstyle="butt")
        axis.plot(estimate.mean * known.scale, row, "D", color=colour, ms=5.4)
    axis.set_xlim(-1.12 * (reach or 1), 1.12 * (reach or 1))
    axis.locator_params(axis="x", nbins=5)
    unit = f" ({known.step_unit})" if known.step_unit else ""
    _x_label(axis, f"difference from the baseline{unit}")
    axis.grid(axis="y", visible=False)
    if known.better in (LOWER, HIGHER):
        left, right = ("better", "worse") if known.better == LOWER else ("worse", "better")
        tone = {"better": BLUE, "worse": VERMILLION}
        place: dict[str, Any] = {"transform": axis.transAxes, "fontsize": 8.8, "va": "bottom"}
        axis.text(0.0, 1.005, f"← {left}", color=tone[left], ha="left", **place)
        axis.text(1.0, 1.005, f"{right} →", color=tone[right], ha="right", **place)


def _x_label(axis: Axes, text: str) -> None:
    axis.set_xlabel(text)
    axis.tick_params(axis="y", length=0)
