"""The tables: arms × metrics, differences from the baseline, effects of switches, cost."""

from __future__ import annotations

from collections.abc import Sequence

from k3lab.report import stats, words
from k3lab.report.analysis import Analysis, Difference
from k3lab.report.arms import Arm
from k3lab.report.document import Cell, Code, Part, Strong, Table, plain
from k3lab.report.factorial import Effects, Factorial
from k3lab.report.metrics import Metric, metric
from k3lab.report.stats import Estimate, mean
from k3lab.tracking import names

COST = (names.PERF_TOKENS_PER_S, names.PERF_STEP_MS, names.PERF_MFU, names.PERF_PEAK_MEMORY_GIB)
FACTS = (
    ("total_params", "parameters"),
    ("active_params", "active parameters"),
    ("flops_per_token", "FLOPs a token (forward)"),
)
MOST = 60  # rows
MOST_COLUMNS = 6


def _column(known: Metric) -> str:
    sign = {-1: "\u00a0↓", 1: "\u00a0↑"}.get(known.better, "")
    unit = "" if not known.unit or known.title.endswith(known.unit) else f", {known.unit}"
    return f"{known.title}{unit}{sign}"


def arm_cell(arm: Arm, analysis: Analysis) -> Cell:
    """Return the first cell of an arm's row."""
    return Cell(f"{arm.short} (baseline)" if arm is analysis.baseline else arm.short)


def results(analysis: Analysis) -> Table:
    """Return arms × metrics with means and intervals over seeds."""
    shown = analysis.metrics
    rows = []
    for arm in analysis.stratum.arms[:MOST]:
        cells = [arm_cell(arm, analysis), Cell(str(len(analysis.usable[arm.name])))]
        for name in shown:
            estimate = analysis.estimate(arm, name)
            text = words.plus_minus(estimate, metric(name).scale, digits=2)
            cells.append(Cell(text, "" if estimate.n else "quiet"))
        rows.append(cells)
    caption: list[Part] = ["n: seeds that count. ↓ lower is better, ↑ higher is better. "]
    caption.append(
        "Mean ± half-width of the 95 % interval over seeds (Student's t)."
        if analysis.seeds > 1
        else "One seed an arm: values have no interval, and differences no verdict."
    )
    if names.BALANCE_MAX_VIO in shown and analysis.has(names.BALANCE_MAX_VIO_FLOOR):
        floors = [analysis.estimate(arm, names.BALANCE_MAX_VIO_FLOOR).mean for arm in analysis.arms]
        finite = [f for f in floors if f == f]
        if finite:
            low, high = min(finite), max(finite)
            text = words.number(low, 2) if words.number(low, 2) == words.number(high, 2) else ""
            text = text or f"{words.number(low, 2)} to {words.number(high, 2)}"
            caption.append(f" MaxVio cannot fall below its sampling floor on average, here {text}.")
    return Table(["arm", "n", *(_column(metric(n)) for n in shown)], rows, caption)


def asides(analysis: Analysis) -> list[str]:
    """Return the metrics that are compared besides the main one: what it may have cost, not the same in other units."""
    wanted = (names.VAL_LOSS, names.VAL_ACCURACY, names.BALANCE_MAX_VIO, names.PERF_TOKENS_PER_S)
    return [n for n in wanted if n in analysis.metrics[1:]]


def comparisons(analysis: Analysis) -> Table:
    """Return each arm's difference from the baseline, with a verdict on the main metric."""
    rest = asides(analysis)
    rows = []
    told = {(len(d.seeds), d.paired) for d in analysis.differences[analysis.main]}
    for i, difference in enumerate(analysis.differences[analysis.main][:MOST]):
        pairs = str(len(difference.seeds)) if difference.paired else "unpaired"
        verdict = f"{words.MARKS[difference.judgement]} {words.verdict(difference)}"
        cells = [arm_cell(difference.arm, analysis), Cell([Strong(verdict)], _tone(difference))]
        cells += [Cell(pairs)] if len(told) > 1 else []
        cells += [_difference(analysis.differences[n][i]) for n in rest]
        rows.append(cells)
    known = metric(analysis.main)
    count = len(analysis.differences[analysis.main])
    caption: list[Part] = ["Arm minus baseline, seed by seed"]
    caption.append(
        "; pairs: seeds that both have. " if len(told) > 1 else f" ({words.plural(told.pop()[0], 'pair')}). "
    )
    if analysis.seeds > 1:
        caption.append("An interval that contains zero is “no difference at this size”: a smaller one may exist. ")
        if count > 4:
            chance = round(100 * (1 - stats.LEVEL**count))
            text = f"Each verdict is a 95 % one by itself: did none of the {count} arms differ, the chance of a "
            caption.append(f"{text}false verdict would still be up to about {chance} %.")
    pairs_column = ["pairs"] if rows and len(rows[0]) > 2 + len(rest) else []
    titles = ["arm", known.title, *pairs_column, *(f"Δ {_column(metric(n))}" for n in rest)]
    return Table(titles, rows, caption, prose=(0, 1))


def _difference(difference: Difference) -> Cell:
    known = metric(difference.metric)
    return Cell(words.plus_minus(difference.estimate, known.scale, signed=True), _tone(difference))


def _tone(difference: Difference) -> str:
    return difference.judgement if difference.judgement in ("better", "worse") else "quiet"


def across(analyses: Sequence[Analysis]) -> Table | None:
    """Return the main metric of arms that occur in several parts, part by part; None if there is nothing to see."""
    shown = [a for a in analyses if a.arms and a.main == analyses[0].main]
    arms = list(dict.fromkeys(arm.short for a in shown for arm in a.arms))
    found = {(a.stratum.title, arm.short): a.estimate(arm, a.main) for a in shown for arm in a.arms}
    if len(shown) < 2 or len(found) <= len(arms) or min(len(arms), len(shown)) > MOST_COLUMNS:
        return None
    titles = [a.stratum.title for a in shown]
    known = metric(shown[0].main)
    rows, columns = (arms, titles) if len(titles) <= MOST_COLUMNS else (titles, arms)
    cells = []
    for row in rows[:MOST]:
        keys = [(column, row) if rows is arms else (row, column) for column in columns]
        values = [found.get(key) for key in keys]
        told = ["—" if v is None else words.plus_minus(v, known.scale) for v in values]
        cells.append([Cell(row), *(Cell(text) for text in told)])
    caption = (
        f"{known.label[:1].upper()}{known.label[1:]} at the end, mean ± 95 % interval where there are several seeds."
    )
    return Table(["arm" if rows is arms else "part", *columns], cells, caption)


def effects(factorial: Factorial, found: dict[str, Effects]) -> Table:
    """Return what each switch, and each set of switches, does to each metric."""
    shown = list(found)
    rows = []
    for subset in factorial.subsets():
        label: list[Part] = []
        for s in subset:
            label += [" × "] if label else []
            label.append(Code(f"{s.key}: {s.off} → {s.on}" if len(subset) == 1 else s.key))
        cells = [Cell(label)]
        for name in shown:
            estimate = found[name].by_subset[subset]
            cells.append(
                Cell(words.plus_minus(estimate, metric(name).scale, True), _effect_tone(estimate, metric(name)))
            )
        rows.append(cells)
    first = found[shown[0]]
    pooled = (
        f"Intervals pool the scatter of all {len(factorial.cells)} arms over {len(first.seeds)} seeds "
        f"({first.freedom} degrees of freedom), so they are narrower than those of two arms alone."
        if first.freedom
        else "One seed: no intervals."
    )
    caption: list[Part] = [
        "One switch: mean of all arms with it on, minus mean of all arms with it off. Several (×): how much the effect "
        "of the first changes when the others are switched on; zero means that the effects add up. ",
        pooled,
    ]
    return Table(["effect", *(_column(metric(n)) for n in shown)], rows, caption)


def _effect_tone(estimate: Estimate, known: Metric) -> str:
    if not estimate.sure or not known.better:
        return "quiet"
    return "better" if (estimate.mean > 0) == (known.better > 0) else "worse"


def cost(analyses: Sequence[Analysis]) -> Table | None:
    """Return what each arm costs: speed, memory, parameters, arithmetic, time."""
    runs = [r for a in analyses for found in a.usable.values() for r in found]
    measured = [n for n in COST if any(n in r.series for r in runs)]
    facts = [(k, title) for k, title in FACTS if any(r.fact(k) is not None for r in runs)]
    if not runs or not (measured or facts):
        return None
    rows = []
    for analysis in analyses:
        for arm in analysis.arms:
            mine = analysis.usable[arm.name]
            label = arm_cell(arm, analysis)
            if len(analyses) > 1:
                label = Cell(f"{plain(label.text)}, {analysis.stratum.title}")
            cells = [label]
            for name in measured:
                cells.append(Cell(words.plus_minus(analysis.estimate(arm, name), metric(name).scale)))
            for key, _ in facts:
                values = {v for r in mine if (v := r.fact(key)) is not None}
                cells.append(Cell(words.magnitude(values.pop()) if len(values) == 1 else "—"))
            wall = [float(r.summary["wall_s"]) for r in mine if isinstance(r.summary.get("wall_s"), (int, float))]
            cells.append(Cell(words.duration(mean(wall).mean) if wall else "—"))
            rows.append(cells)
    titles = ["arm", *(_column(metric(n)) for n in measured), *(t for _, t in facts), "wall time a run"]
    caption: list[Part] = ["Speeds are those of the machine below, and of whatever else it was doing."]
    if not facts:
        caption += [" These runs did not record their parameters and FLOPs: ", Code("k3lab audit"), " counts them."]
    return Table(titles, rows[:MOST], caption)
