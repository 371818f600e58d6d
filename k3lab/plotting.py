"""One look for figures: colours that colour-blind readers tell apart, labels at page width, no decoration.

Needs matplotlib, which takes a second to import: whoever may not draw imports this module inside a function.
"""

from __future__ import annotations

import math
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
from matplotlib.ticker import FuncFormatter, MaxNLocator

WIDTH = 9.0  # inches: a page at 100 pixels an inch
DPI = 170
# Okabe and Ito's colours without the yellow, which white paper swallows.
BLACK, BLUE, VERMILLION, GREEN, PURPLE, SKY, ORANGE = (
    *("#3a3a3a", "#0072B2", "#D55E00", "#009E73"),
    *("#CC79A7", "#56B4E9", "#E69F00"),
)
CYCLE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
GREY = "#8a8a8a"
HEAT = "cividis"  # readable in grey and with every kind of colour vision
DIVERGING = "PuOr_r"  # likewise, around a middle
MOST_PANELS = 12

RC: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "figure.titlesize": 10.5,
    "axes.titlesize": 9.5,
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
def canvas(height: float, path: Path, title: str = "") -> Iterator[Figure]:
    """Yield an empty figure of the page's width, ``height`` inches tall, and save it to ``path``."""
    with matplotlib.rc_context(RC), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph that the font lacks, a layout that had to give way
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        if title:
            figure.suptitle(title, x=0.008, ha="left")
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".tmp-{path.name}")
        figure.savefig(draft, dpi=DPI, format="png", metadata={"Software": None})
        draft.replace(path)


def grid(figure: Any, count: int, columns: int, share: bool = True) -> list[Axes]:
    """Return ``count`` axes in rows of ``columns`` on a figure or a part of it; unused places stay empty."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    axes = np.asarray(figure.subplots(rows, columns, sharex=share, sharey=share, squeeze=False)).ravel()
    for axis in axes[count:]:
        axis.set_visible(False)
    for axis in axes[max(0, count - columns) : count]:
        axis.tick_params(labelbottom=True)
    return list(axes[:count])


def label_below(axes: Sequence[Axes], columns: int, text: str) -> None:
    """Label the horizontal axis of the panels in the last row of a grid."""
    for axis in axes[(len(axes) - 1) // columns * columns :]:
        axis.set_xlabel(text)


def from_zero(axis: Axes, least: float = 1.0) -> None:
    """Let the vertical axis begin just below 0, so that a line along 0 is seen, and reach at least ``least``."""
    top = max(least, axis.get_ylim()[1])
    axis.set_ylim(-0.03 * top, top)


def log_scale(axis: Axes) -> None:
    """Scale the vertical axis by logarithm, with plain numbers."""
    axis.set_yscale("log")
    plain_log(axis.yaxis)


def plain_log(axis: Axis) -> None:
    """Write plain numbers at 1, 2 and 5 of a logarithmic axis, at more of them where it is short."""

    def between(x: float, _: object) -> str:
        low, high = axis.get_view_interval()
        ratio = high / low if low > 0 else math.inf
        told = "" if ratio > 1e3 else "25" if ratio > 8 else "2357" if ratio > 2.5 else "23456789"
        return f"{x:g}" if f"{x:.0e}"[0] in told else ""

    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}" if x >= 1e4 else f"{x:g}"))
    axis.set_minor_formatter(FuncFormatter(between))
    axis.set_tick_params(which="minor", labelsize=8.8)


def whole_numbers(axis: Axis, most: int = 8) -> None:
    """Tick at up to ``most`` + 1 integers alone, and write thousands short."""
    axis.set_major_locator(MaxNLocator(most, integer=True, min_n_ticks=1))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1000:g}k" if abs(x) >= 1e4 else f"{x:g}"))


def thin(lines: int) -> dict[str, Any]:
    """Width and opacity of one of many lines in a panel."""
    return {"lw": 1.2} if lines <= 12 else {"lw": 0.7, "alpha": 0.6}


def dots(points: int) -> dict[str, Any]:
    """Markers for a line of so few points that it might not be seen."""
    return {"marker": "o", "ms": 4} if points < 3 else {}


def shades(count: int) -> list[Any]:
    """Return ``count`` colours from dark to light, for things that have an order."""
    return list(matplotlib.colormaps[HEAT](np.linspace(0.0, 0.92, max(count, 1))))


def spread_out(items: Sequence[Any], most: int = MOST_PANELS) -> list[Any]:
    """Return at most ``most`` of the items, the first and the last among them, evenly spaced."""
    if len(items) <= most:
        return list(items)
    return [items[i] for i in np.linspace(0, len(items) - 1, most).round().astype(int)]


def some_of(shown: int, all_of_them: int, what: str) -> str:
    """Return `` · 12 of 69 layers`` where a figure leaves some out, else nothing."""
    return f" · {shown} of {all_of_them} {what}" if shown < all_of_them else ""


def edges(centres: np.ndarray) -> np.ndarray:
    """Return the borders halfway between increasing numbers, one more than there are."""
    if len(centres) == 1:
        return np.array([centres[0] - 0.5, centres[0] + 0.5])
    middle = (centres[1:] + centres[:-1]) / 2
    return np.concatenate([[2 * centres[0] - middle[0]], middle, [2 * centres[-1] - middle[-1]]])


def numbers_in(axis: Axes, values_RC: np.ndarray, bright_from: float, form: str = "{:.0f}", scale: float = 1.0) -> None:
    """Write each finite value of an image into its cell, black from ``bright_from`` on and white below."""
    for (row, column), value in np.ndenumerate(values_RC):
        if np.isfinite(value):
            colour = "black" if value >= bright_from else "white"
            axis.text(column, row, form.format(scale * value), ha="center", va="center", fontsize=8, color=colour)
