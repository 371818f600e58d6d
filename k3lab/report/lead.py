"""The answer in a few sentences, before any table."""

from __future__ import annotations

from collections.abc import Sequence

from k3lab.report import words
from k3lab.report.analysis import Analysis
from k3lab.report.document import Code, Lead, Part, Strong, Text
from k3lab.report.factorial import Effects, Factorial, Switch
from k3lab.report.metrics import metric
from k3lab.tracking import names

ASIDES = (names.BALANCE_MAX_VIO, names.PERF_TOKENS_PER_S)
COUNTS = {2: "both", 3: "all three", 4: "all four"}


def lead(
    analyses: Sequence[Analysis], designs: Sequence[Factorial | None], effects: Sequence[dict[str, Effects]]
) -> Lead:
    """Return the page's first paragraph and its points."""
    told = [(a, d, e) for a, d, e in zip(analyses, designs, effects, strict=True) if a.arms]
    if not told:
        return Lead(["No run has a result yet."])
    if len(told) == 1:
        return _of(*told[0])
    points: list[Text] = []
    for analysis, _, _ in told:
        points.append([Strong(f"{analysis.stratum.title}: "), *_best(analysis)])
    first: list[Part] = ["The runs are on different data or of different lengths: they are compared in "]
    first.append(Strong(f"{len(told)} parts."))
    return Lead(first, points)


def _of(analysis: Analysis, design: Factorial | None, effects: dict[str, Effects]) -> Lead:
    main = effects.get(analysis.main)
    if design is not None and main is not None and not design.others:
        return Lead(_together(analysis, design), _switches(analysis, design, effects))
    points: list[Text] = []
    if design is not None and main is not None:
        points += _switches(analysis, design, effects)
    else:
        points += _comparisons(analysis)
    return Lead(_best(analysis), points)


def _together(analysis: Analysis, design: Factorial) -> list[Part]:
    known = metric(analysis.main)
    arm = design.cell(design.switches)
    assert arm is not None, "a full factorial has the cell with every switch on"
    assert analysis.baseline is not None, "a factorial has a baseline"
    difference = analysis.difference(arm, analysis.main)
    ours, base = (words.plus_minus(analysis.estimate(a, analysis.main), known.scale) for a in (arm, analysis.baseline))
    count = COUNTS.get(len(design.switches), f"all {len(design.switches)}")
    return [
        f"{count.capitalize()} switched on together (",
        Code(arm.short),
        ") against the baseline, all off (",
        Code(analysis.baseline.short),
        f"): in {known.title} ",
        Strong(words.verdict(difference)),
        f", {ours} instead of {base}{f' {known.unit}' if known.unit else ''}.",
    ]


def _switches(analysis: Analysis, design: Factorial, effects: dict[str, Effects]) -> list[Text]:
    main = effects[analysis.main]
    others = "the other switch" if len(design.switches) == 2 else "the other switches"
    points: list[Text] = []
    for switch in design.switches:
        text: list[Part] = [
            Strong(f"{switch.key}={switch.on}"),
            f" instead of {switch.off}: on average over {others} it ",
        ]
        text += [
            _does(
                main.by_subset[(switch,)].half is None,
                words.effect(main.by_subset[(switch,)], main.metric),
                main.metric,
            )
        ]
        if (alone := design.cell((switch,))) is not None:
            text.append(f"; alone: {words.verdict(analysis.difference(alone, main.metric))}")
        text.append(".")
        text += _asides(switch, effects, main.metric)
        points.append(text)
    points.append(interactions(design, main))
    return points


def _does(single: bool, text: str, name: str) -> str:
    """Return an effect's words with the metric in place of ``it``."""
    if single:
        return f"moves {metric(name).title}: {text}"
    if text.startswith(("no effect", "nothing")):
        return f"has {text} on {metric(name).title}" if text.startswith("no effect") else f"does {text}"
    return text.replace(" it ", f" {metric(name).title} ", 1)


def _asides(switch: Switch, effects: dict[str, Effects], main: str) -> list[Part]:
    sure = [n for n in ASIDES if n in effects and n != main and effects[n].by_subset[(switch,)].sure]
    if not sure:
        return []
    told = [_does(False, words.effect(effects[n].by_subset[(switch,)], n), n) for n in sure]
    return [f" It also {words.listing(told)}."]


def interactions(design: Factorial, effects: Effects) -> Text:
    """Return whether the switches' effects simply add up."""
    known = metric(effects.metric)
    several = {s: e for s, e in effects.by_subset.items() if len(s) > 1}
    first: list[Part] = [Strong("Together: ")]
    if all(e.half is None for e in several.values()):
        return [*first, "one seed: whether the effects add up cannot be told from chance."]
    sure = {s: e for s, e in several.items() if e.sure}
    if not sure:
        widest = max(e.half or 0.0 for s, e in several.items() if len(s) == 2) * known.scale
        size = f"±{words.number(widest, 2)} {known.step_unit}".rstrip()
        text = f"the effects add up as far as can be seen: no interaction differs from zero (known to about {size})."
        return [*first, text]
    told = []
    for subset, estimate in sure.items():
        one, rest = subset[0], subset[1:]
        helps = (estimate.mean > 0) == (known.better > 0)
        way = ("more useful" if helps else "less useful") if known.better else _way(estimate.mean)
        on = " and ".join(f"{s.key}={s.on}" for s in rest)
        told.append(f"{one.key}={one.on} is {way} with {on}, by {words.size(estimate, known)}")
    text = f"the effects do not simply add up: {words.listing(told, 'and', 4)}."
    total = effects.surplus
    if total is not None and total.sure and len(design.switches) > 2 and known.better:
        less = "less" if (total.mean > 0) != (known.better > 0) else "more"
        text += f" All on, they give {words.size(total, known)} {less} than the sum of what each gives alone."
    return [*first, text]


def _way(change: float) -> str:
    return "stronger upwards" if change > 0 else "stronger downwards"


def _best(analysis: Analysis) -> list[Part]:
    known = metric(analysis.main)
    ranked = sorted(
        (arm for arm in analysis.arms if analysis.estimate(arm, analysis.main).n),
        key=lambda arm: analysis.estimate(arm, analysis.main).mean * (-1 if known.better > 0 else 1),
    )
    unit = f" {known.unit}" if known.unit else ""
    if not ranked:
        return [f"No run has a {known.title}."]
    best = ranked[0]
    value = words.plus_minus(analysis.estimate(best, analysis.main), known.scale)
    if len(ranked) == 1:
        return [
            f"One arm, {words.plural(len(analysis.usable[best.name]), 'seed')}: {known.title} is ",
            Strong(f"{value}{unit}"),
            ".",
        ]
    rival = ranked[1]
    difference = analysis.difference(best, analysis.main, rival)
    text: list[Part] = [
        f"Of {len(ranked)} arms, ",
        Code(best.name),
        f" has the best {known.title}: ",
        Strong(f"{value}{unit}"),
        ".",
    ]
    if difference.judgement == "open":
        text.append(" With one seed that is no verdict: another seed may put another arm first.")
    elif difference.judgement in ("none", "identical"):
        text += [
            " It cannot be told apart from the second, ",
            Code(rival.name),
            f" ({words.verdict(difference)}).",
        ]
    else:
        text += [" The second is ", Code(rival.name), f"; the first is {words.verdict(difference)}."]
    return text


def _comparisons(analysis: Analysis) -> list[Text]:
    if analysis.baseline is None:
        return []
    points: list[Text] = []
    for difference in analysis.differences.get(analysis.main, [])[:8]:
        points.append([Code(difference.arm.name), ": ", Strong(words.verdict(difference)), "."])
    if points:
        points[0] = [*points[0][:-1], f", against the baseline {analysis.baseline.short}."]
    return points
