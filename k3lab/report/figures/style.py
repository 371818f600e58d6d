"""What all figures of a report share: a colour and a line style for each arm, legends, names on several lines."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from k3lab.plotting import BLACK, BLUE, CYCLE, VERMILLION
from k3lab.report.analysis import Analysis
from k3lab.report.arms import Arm

TONES = {"better": BLUE, "worse": VERMILLION}
MOST = 12  # arms in one figure


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
