"""What is missing: arms and seeds without a result, and runs that failed or stopped, each by name."""

from __future__ import annotations

import math
from collections.abc import Sequence

from k3lab.report import factorial, words
from k3lab.report.analysis import Analysis
from k3lab.report.arms import Arm
from k3lab.report.collect import Found
from k3lab.report.document import Code, Notice, Part, Text
from k3lab.report.metrics import metric
from k3lab.report.record import Run

MOST = 20  # lines of one kind
STATES = {
    "failed": "failed",
    "interrupted": "was interrupted",
    "running": "has not ended (it is running, or was killed)",
    "waiting": "never began",
}


def notice(found: Found, analyses: Sequence[Analysis]) -> Notice | None:
    """Return everything that a reader must know to be missing, None if nothing is."""
    items: list[Text] = []
    for analysis in analyses:
        items += _capped(_of(analysis))
    items += _capped([_absent(a.label, a.status, a.error) for a in found.absent])
    items += [note[:1].upper() + note[1:] + "." for note in found.notes]
    return Notice("What is missing or was left out", items) if items else None


def _of(analysis: Analysis) -> list[Text]:
    where = f"{analysis.stratum.title}: " if analysis.stratum.title else ""
    items: list[Text] = []
    seeds = list(dict.fromkeys(r.seed for arm in analysis.stratum.arms for r in arm.runs))
    for arm in analysis.stratum.arms:
        counted = analysis.usable[arm.name]
        if not counted:
            items.append([where, Code(arm.name), " has no result."])
        for run in arm.runs:
            if run not in counted:
                items.append([where, Code(arm.name), f", seed {run.seed}: {_fate(run)}"])
            elif run.status != "finished":
                items.append([where, Code(arm.name), f", seed {run.seed}: counts although it {_state(run)}."])
        lost = [s for s in seeds if s not in arm.by_seed]
        if lost:
            which, verb = ("seeds", "were") if len(lost) > 1 else ("seed", "was")
            items.append([where, Code(arm.name), f": {which} {words.listing(lost)} {verb} never run."])
        items += _not_finite(analysis, arm, where)
        if arm.superseded:
            again = words.plural(len(arm.superseded), "older run")
            items.append(
                [
                    where,
                    Code(arm.name),
                    f": {again} of the same seed left out; the newest finished one counts.",
                ]
            )
    for name in factorial.missing(analysis):
        items.append([where, "No run with ", Code(name), ": without it the arms are no full factorial."])
    if analysis.cut:
        text = f"{where}The runs have different lengths: all are compared at step {analysis.step}, the last shared one."
        items.append(text)
    tokens = {run.tokens for runs in analysis.usable.values() for run in runs}
    if len(tokens) > 1 and not analysis.cut:
        items.append(
            f"{where}The arms were trained on different numbers of tokens: they are compared after equal steps."
        )
    if analysis.why.startswith(("no arm", "--")) or (analysis.baseline is None and len(analysis.arms) > 1):
        items.append(f"{where}There is no baseline: {analysis.why}.")
    return items


def _not_finite(analysis: Analysis, arm: Arm, where: str) -> list[Text]:
    bad = [
        run.seed
        for run in analysis.usable[arm.name]
        if analysis.main in run.series and not math.isfinite(run.value(analysis.main, analysis.step))
    ]
    if not bad:
        return []
    return [
        [
            where,
            Code(arm.name),
            f", seed {words.listing(bad)}: {metric(analysis.main).title} is not finite; left out.",
        ]
    ]


def _state(run: Run) -> str:
    planned = f" of {run.max_steps}" if run.max_steps else ""
    return f"{STATES.get(run.status, run.status)} after step {run.steps}{planned}"


def _fate(run: Run) -> str:
    if run.status == "finished":
        return "left out: it logged no loss."
    why = f": {run.error}" if run.error else ""
    return f"left out: it {_state(run)}{why}".rstrip(".") + "."


def _absent(label: str, status: str, error: str) -> list[Part]:
    text = STATES.get(status, status)
    return ["The job ", Code(label), f" {text} and left no result" + (f": {error}" if error else "") + "."]


def _capped(items: list[Text]) -> list[Text]:
    if len(items) <= MOST:
        return items
    return [
        *items[: MOST - 1],
        f"… and {len(items) - MOST + 1} more like these; results.csv has every run's status.",
    ]
