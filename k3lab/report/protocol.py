"""How the result came about: what the arms are, the commands, the settings, the machine, every run, the words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from k3lab.config.registry import conf_dir, groups
from k3lab.report import commands, words
from k3lab.report.analysis import Analysis
from k3lab.report.collect import Found
from k3lab.report.document import (
    Block,
    Bullets,
    Cell,
    Code,
    Commands,
    Heading,
    Paragraph,
    Part,
    Strong,
    Table,
    Terms,
    Text,
)
from k3lab.report.factorial import Factorial
from k3lab.report.metrics import metric
from k3lab.report.record import Run

GROUPS = {
    "decay": "how fast the recurrent memory forgets",
    "router": "how tokens are shared out among experts",
    "residual": "how the outputs of earlier layers are combined along the depth",
    "mixer": "how tokens exchange information",
    "ffn": "the feed-forward layers",
    "model": "size of the model",
    "data": "what is learnt",
    "optim": "the optimizer",
    "schedule": "how the learning rate changes",
}
TERMS = {
    "arm": "One configuration that is compared with others; its runs differ in the seed alone.",
    "seed": "The number that fixes the random start of a run and the order of its data. Repeating an arm with "
    "several seeds shows how much chance alone moves the result.",
    "baseline": "The arm that the others are compared with.",
    "95 % interval": "Mean ± half-width, from Student's t over the seeds. Were the whole experiment repeated many "
    "times with new seeds, 95 % of such intervals would hold the true mean.",
    "paired difference": "Arm minus baseline for the same seed, on the same data, then averaged: what a seed does "
    "to both arms cancels.",
    "no difference at this size": "The interval of the difference contains zero. It does not prove equality: the "
    "interval says how large a difference could still be.",
}
SWITCH_TERMS = {
    "effect of a switch": "Mean of all arms with the switch on minus mean of all arms with it off.",
    "alone": "Baseline with this one switch on, against the baseline.",
    "interaction (×)": "How much the effect of one switch changes when another one is on.",
}
MOST_RUNS = 64
MACHINE = ("device", "gpu", "cuda", "cpu", "platform", "host")


def how_to_read(analyses: Sequence[Analysis]) -> Text:
    """Return the few words without which the page cannot be read."""
    text: list[Part] = ["How to read this: an ", Strong("arm"), " is one configuration, trained once for each "]
    text += [Strong("seed"), " (start of the random numbers). "]
    seeds = max((a.seeds for a in analyses), default=0)
    if seeds > 1:
        text += [Strong("a ± b"), " is a mean over seeds and its 95 % interval, from a − b to a + b. "]
        text += ["“", Strong("No difference at this size"), "” means that the interval contains zero. "]
        text += ["Two seeds give very wide intervals; a third narrows them about threefold. "] if seeds == 2 else []
    else:
        text += ["With one seed there are no intervals, so nothing here is a verdict. "]
    return [*text, "All words are explained at the end."]


def parts(analyses: Sequence[Analysis]) -> list[Block]:
    """Return what the names of the arms mean, option by option."""
    keys: dict[str, dict[str, None]] = {}
    for analysis in analyses:
        for factor in analysis.stratum.factors:
            keys.setdefault(factor.key, {}).update(dict.fromkeys(factor.levels))
    if not keys:
        return []
    rows = []
    for key, values in keys.items():
        for i, value in enumerate(values):
            decides = "" if i else GROUPS.get(key.split(".")[0], "")
            rows.append([Cell(decides), Cell([Code(f"{key}={value}")]), Cell(describe(key, value))])
    aliases = [f"{k} ({', '.join(v)})" for a in analyses for k, v in a.stratum.aliases.items()]
    caption = f"Along with it change: {words.listing(dict.fromkeys(aliases))}." if aliases else ""
    return [
        Heading("What the arms are"),
        Table(["what is varied", "setting", "meaning"], rows, caption, (0, 1, 2)),
    ]


def describe(key: str, value: str) -> str:
    """Return the first comment of an option's YAML file, or the comment of a key there."""
    group, _, rest = key.partition(".")
    if group not in groups():
        return ""
    names = value.split("+") if not rest else [""]
    found = []
    for name in names:
        file = conf_dir() / group / f"{name}.yaml"
        if not rest and file.is_file():
            lines = file.read_text(encoding="utf-8").splitlines()
            heads = [
                line.removeprefix("#").strip() for line in lines[:2] if line.startswith("#") and "@package" not in line
            ]
            found += heads[:1]
    return "; ".join(found)


def made(found: Found, analyses: Sequence[Analysis]) -> list[Block]:
    """Return the section on commands, settings and machines."""
    runs = [run for a in analyses for arm in a.stratum.arms for run in arm.runs]
    if not runs:
        return []
    blocks: list[Block] = [Heading("How it was run"), Bullets(_sizes(found, analyses, runs))]
    lines = found.commands()
    blocks.append(Heading("Commands", 3))
    if not lines:
        rebuilt = [c for run in runs if (c := commands.reconstruct(run))]
        lines = list(dict.fromkeys(rebuilt))
        if lines:
            blocks.append(Paragraph("The runs did not keep their commands; these give the same configurations."))
    if lines:
        blocks.append(Commands(lines[:40]))
        if len(lines) > 40:
            blocks.append(Paragraph(f"… and {len(lines) - 40} more."))
    else:
        blocks.append(Paragraph("Not recorded; each run's folder holds its config.yaml."))
    blocks += [Heading("Machine and versions", 3), Bullets(_environment(runs))]
    common = _common(runs)
    if common:
        blocks += [Heading("Settings that all arms share", 3), Paragraph(common)]
    return blocks


def _sizes(found: Found, analyses: Sequence[Analysis], runs: list[Run]) -> list[Text]:
    statuses: dict[str, int] = {}
    for run in runs:
        statuses[run.status] = statuses.get(run.status, 0) + 1
    told = ", ".join(f"{n} {s}" for s, n in statuses.items())
    items: list[Text] = [
        f"{words.plural(len(runs), 'run')} ({told}) in {sum(len(a.stratum.arms) for a in analyses)} arms."
    ]
    for analysis in analyses:
        tokens = sorted({t for counted in analysis.usable.values() for r in counted if (t := r.tokens)})
        if not analysis.arms:
            continue
        where = f"{analysis.stratum.title}: " if analysis.stratum.title else ""
        size = f", {_range([words.magnitude(t) for t in tokens])} tokens" if tokens else ""
        base = f" Baseline: {analysis.baseline.name} ({analysis.why})." if analysis.baseline else ""
        items.append(f"{where}Compared at optimizer step {analysis.step}{size} a run.{base}")
    items.append(f"{found.source[:1].upper()}{found.source[1:]}.")
    recorded = sorted({run.data for run in runs if run.data})
    if recorded:
        items.append(["Fingerprint of the data: ", *_codes(recorded)])
    return items


def _range(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"


def _codes(texts: Iterable[str]) -> list[Part]:
    found: list[Part] = []
    for text in texts:
        found += [", ", Code(text)] if found else [Code(text)]
    return found


def _environment(runs: list[Run]) -> list[Text]:
    keys = dict.fromkeys(k for run in runs for k in run.environment)
    items: list[Text] = []
    versions: list[str] = []
    for key in [*(k for k in MACHINE if k in keys), *(k for k in keys if k not in MACHINE)]:
        values = list(dict.fromkeys(run.environment[key] for run in runs if key in run.environment))
        if key in MACHINE or key == "git_commit":
            items.append([f"{key.replace('_', ' ')}: ", *_codes(values)])
        else:
            versions.append(f"{key} {' / '.join(values)}")
    if versions:
        items.append("Versions: " + ", ".join(versions))
    return items or ["Not recorded."]


def _common(runs: list[Run]) -> list[Part]:
    """Return the settings on which all runs agree, empty ones left out."""
    first = runs[0].config
    text: list[Part] = []
    skip = ("seed", "resume", "name")
    for key, value in first.items():
        if key in skip or key.startswith(("paths.", "tracking", "launch", "sweep")) or value == "null":
            continue
        if all(run.config.get(key) == value for run in runs):
            text += [" ", Code(f"{key}={value}")] if text else [Code(f"{key}={value}")]
    return text


def every_run(analyses: Sequence[Analysis]) -> list[Block]:
    """Return the table of all runs."""
    rows = []
    total = sum(len(arm.runs) for a in analyses for arm in a.stratum.arms)
    for analysis in analyses:
        known = metric(analysis.main)
        for arm in analysis.stratum.arms:
            for run in arm.runs:
                value = words.number(run.value(analysis.main, analysis.step) * known.scale)
                rows.append(
                    [
                        Cell([Code(arm.name)]),
                        Cell(run.seed),
                        Cell(run.status, "" if run.status == "finished" else "worse"),
                        Cell(str(run.steps)),
                        Cell(f"{value} {known.unit}".strip()),
                        Cell([Code(run.label)]),
                    ]
                )
    where = f" The first {MOST_RUNS} of {total}; results.csv has all." if total > MOST_RUNS else ""
    caption = (
        f"Last column: where the run lies under the output folder. All metrics of all runs are in results.csv.{where}"
    )
    titles = ["arm", "seed", "status", "steps", "result", "run"]
    return [Heading("Every run"), Table(titles, rows[:MOST_RUNS], caption, (0, 2, 5))]


def glossary(analyses: Sequence[Analysis], designs: Sequence[Factorial | None], shown: Iterable[str]) -> list[Block]:
    """Return the meaning of every word and metric that the page uses."""
    terms = dict(TERMS) | (SWITCH_TERMS if any(designs) else {})
    items: list[tuple[str, Text]] = [(word, meaning) for word, meaning in terms.items()]
    for name in dict.fromkeys(shown):
        known = metric(name)
        if known.meaning:
            items.append((known.title, [Code(name), f". {known.meaning}"]))
    items.append(("nat", "Unit of information by natural logarithm; 1 nat = 1.443 bits."))
    return [Heading("What the words mean"), Terms(items)]
