"""`k3lab report`: from names on a command line to a page, its Markdown twin, figures and results.csv."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from k3lab.config.errors import UserError
from k3lab.report import export, html, markdown, words
from k3lab.report.analysis import Analysis, analyse, check_baseline, check_metric
from k3lab.report.arms import group, strata
from k3lab.report.collect import Found, collect
from k3lab.report.document import Lead, plain
from k3lab.report.page import build

PAGE, TWIN, RESULTS = "report.html", "report.md", "results.csv"
FOLDER = "reports"  # inside the output folder


def run_report(
    targets: list[str],
    output: Path,
    baseline: str | None = None,
    out: Path | None = None,
    metric: str | None = None,
    uri: str | None = None,
) -> int:
    """Write the report on experiments, runs or folders and print the page's path last; returns the exit code.

    ``output`` holds the runs and, unless ``uri`` names another one, their MLflow store. ``out`` is the folder to
    write to, by default ``output``/reports/NAME. Raises UserError.
    """
    found = collect(targets, output, uri)
    folder = out if out is not None else output / FOLDER / _file_name(found.title)
    parts = strata(group(found.runs))
    check_baseline(parts, baseline)
    check_metric(found.runs, metric)
    analyses = [analyse(part, baseline, metric) for part in parts]
    try:
        return _write(found, analyses, folder)
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written: {error.strerror or error}") from error


def _write(found: Found, analyses: list[Analysis], folder: Path) -> int:
    figures = folder / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    before = _figures_of(folder / TWIN)
    document, drawn = build(found, analyses, folder, _subtitle(found, analyses))
    _replace(folder / RESULTS, export.table(analyses))
    _replace(folder / TWIN, markdown.render(document))
    _replace(folder / PAGE, html.render(document, folder))
    for name in before - set(drawn):  # of an earlier report here, which had other arms
        (figures / f"{name}.png").unlink(missing_ok=True)
    first = document.blocks[0]
    assert isinstance(first, Lead)
    for text in (first.text, *first.points):
        print(plain(text))
    missing = sum(run.status != "finished" for run in found.runs) + len(found.absent)
    if missing:
        print(f"k3lab: {words.plural(missing, 'run')} without a result: the page names them", file=sys.stderr)
    sys.stderr.flush()
    print(folder / PAGE, flush=True)
    return 0


def _subtitle(found: Found, analyses: list[Analysis]) -> str:
    arms = sum(len(a.stratum.arms) for a in analyses)
    seeds = sorted({len(arm.runs) for a in analyses for arm in a.stratum.arms})
    each = ""
    if seeds:
        count = words.plural(seeds[-1], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
        each = f" × {count}"
    steps = sorted({a.step for a in analyses if a.step})
    length = f", {steps[-1]} optimizer steps" if len(steps) == 1 else ""
    made = time.strftime("%Y-%m-%d %H:%M")
    return f"{words.plural(arms, 'arm')}{each}, {words.plural(len(found.runs), 'run')}{length}. Report of {made}."


def _figures_of(twin: Path) -> set[str]:
    try:
        return set(re.findall(r"\]\(figures/([\w.-]+)\.png\)", twin.read_text(encoding="utf-8")))
    except OSError:
        return set()


def _file_name(title: str) -> str:
    return re.sub(r"[^\w.-]+", "-", title).strip("-.")[:80] or "report"


def _replace(file: Path, text: str) -> None:
    temporary = file.with_name(f".tmp-{file.name}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)
