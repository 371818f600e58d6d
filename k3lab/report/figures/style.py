"""One look for all figures: colours that colour-blind readers tell apart, labels at page width, no decoration."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from k3lab.report.analysis import Analysis
from k3lab.report.arms import Arm

WIDTH = 9.0  # inches; the page shows 100 pixels an inch
DPI = 170
# Okabe and Ito's colours without the yellow, which white paper swallows.
BLACK, BLUE, VERMILLION, GREEN, PURPLE, SKY, ORANGE = (
    *("#3a3a3a", "#0072B2", "#D55E00", "#009E73"),
    *("#CC79A7", "#56B4E9", "#E69F00"),
)
CYCLE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
GREY = "#8a8a8a"
TONES = {"better": BLUE, "worse": VERMILLION}
MOST = 12  # arms in one figure
HEAT = "cividis"  # readable in grey and with every kind of colour vision

RC: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.titleweight": "normal",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.labelcolor": "#222222",
    "axes.edgecolor": "#777777",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "xtick.labelsize": 8.8,
    "ytick.labelsize": 8.8,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "legend.frameon": False,
    "legend.fontsize": 8.8,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "savefig.facecolor": "white",
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
}


@contextmanager
def canvas(height: float, path: Path) -> Iterator[Figure]:
    """Yield an empty figure of the page's width and save it to ``path``."""
    with matplotlib.rc_context(RC), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph that the font lacks, a layout that had to give way
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=DPI, metadata={"Software": None})


def colours(analysis: Analysis) -> dict[str, str]:
    """Return a colour for each arm's name; the baseline is dark grey."""
    found, turn = {}, 0
    for arm in analysis.arms:
        if arm is analysis.baseline:
            found[arm.name] = BLACK
        else:
            found[arm.name] = CYCLE[turn % len(CYCLE)]
            turn += 1
    return found


def dashes(analysis: Analysis) -> dict[str, Any]:
    """Return a line style for each arm's name: dashed once the colours come round again."""
    found: dict[str, Any] = {}
    others = [arm for arm in analysis.arms if arm is not analysis.baseline]
    for turn, arm in enumerate(others):
        found[arm.name] = ("-", (0, (4, 1.6)), (0, (1.2, 1.2)))[turn // len(CYCLE) % 3]
    if analysis.baseline is not None:
        found[analysis.baseline.name] = "-"
    return found


def chosen(analysis: Analysis, arms: Sequence[Arm] | None = None, most: int = MOST) -> list[Arm]:
    """Return the arms that a figure has room for: the baseline, then the first in the page's order."""
    return list(arms if arms is not None else analysis.arms)[:most]


def wrap(text: str, width: int = 26) -> str:
    """Return an arm's short name on as many lines as it needs."""
    return "\n".join(textwrap.wrap(text, width, break_long_words=True)) or text


def legend(figure: Figure, analysis: Analysis, arms: Sequence[Arm], extra: Sequence[Line2D] = ()) -> None:
    """Put one legend for the whole figure below it."""
    palette, style = colours(analysis), dashes(analysis)
    handles = [Line2D([], [], color=palette[a.name], ls=style[a.name], lw=2, label=label(a, analysis)) for a in arms]
    longest = max((len(str(h.get_label())) for h in [*handles, *extra]), default=1)
    columns = max(1, min(4, len(handles) + len(extra), math.floor(125 / (longest + 7))))
    figure.legend(handles=[*handles, *extra], loc="outside lower left", ncols=columns, handlelength=2.2)


def label(arm: Arm, analysis: Analysis) -> str:
    """Return an arm's name in a legend."""
    return arm.short + (" (baseline)" if arm is analysis.baseline else "")


def log_scale(axes: Axes) -> None:
    """Scale the vertical axis by logarithm, with plain numbers at 1, 2 and 5."""
    axes.set_yscale("log")
    plain_log(axes.yaxis)


def plain_log(axis: Axis) -> None:
    """Write plain numbers at 1, 2 and 5 of a logarithmic axis, at more of them if it is short."""

    def between(x: float, _: object) -> str:
        low, high = axis.get_view_interval()
        told = "25" if high > 8 * low > 0 else "2357" if high > 2.5 * low > 0 else "23456789"
        return f"{x:g}" if f"{x:.0e}"[0] in told else ""

    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(FuncFormatter(between))
    axis.set_tick_params(which="minor", labelsize=8.8)


def whole_numbers(axis: Axis) -> None:
    """Tick at integers alone."""
    axis.set_major_locator(MaxNLocator(integer=True))


def grid(figure: Figure, count: int, columns: int) -> list[Axes]:
    """Return ``count`` axes in rows of ``columns`` that share both scales; unused places stay empty."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    axes = np.asarray(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)).ravel()
    for axis in axes[count:]:
        axis.set_visible(False)
    for axis in axes[max(0, count - columns) : count]:
        axis.tick_params(labelbottom=True)
    return list(axes[:count])
