"""The page: which sections there are, in which order, and the figures that go with them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from k3lab.report import gaps, protocol, tables, words
from k3lab.report.analysis import Analysis
from k3lab.report.collect import Found
from k3lab.report.document import Block, Code, Document, Heading, Paragraph, Part, Picture
from k3lab.report.factorial import Effects, Factorial, design, effects
from k3lab.report.figures import balance, curves, decay, depth, dots
from k3lab.report.lead import interactions, lead
from k3lab.report.metrics import metric
from k3lab.tracking import names

PARTS_IN_FULL = 3  # strata whose inner life is drawn too; more of them get results and curves alone


@dataclass
class Sheet:
    """Blocks and figures as they come into being."""

    folder: Path
    blocks: list[Block] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)

    def add(self, *blocks: Block | None) -> None:
        """Add what there is."""
        for block in blocks:
            if block is not None:
                self.blocks.append(block)
                if isinstance(block, Picture):
                    self.pictures.append(block.name)

    def section(self, title: str, level: int, *blocks: Block | None) -> None:
        """Add a section, unless it is empty."""
        if any(block is not None for block in blocks):
            self.add(Heading(title, level), *blocks)


def build(found: Found, analyses: Sequence[Analysis], folder: Path, subtitle: str) -> tuple[Document, list[str]]:
    """Draw the figures into ``folder``/figures and return the document and the figures' names."""
    figures = folder / "figures"
    designs = [design(a) for a in analyses]
    found_effects = [_effects(a, d) for a, d in zip(analyses, designs, strict=True)]
    sheet = Sheet(figures)
    sheet.add(lead(analyses, designs, found_effects), gaps.notice(found, analyses))
    sheet.add(Paragraph(protocol.how_to_read(analyses)), *protocol.parts(analyses))
    several = len(analyses) > 1
    sheet.section("All parts at a glance", 2, tables.across(analyses) if several else None)
    for number, (analysis, plan, found_here) in enumerate(zip(analyses, designs, found_effects, strict=True)):
        suffix = f"_{number + 1:02d}" if several else ""
        if several:
            sheet.add(Heading(f"Part {number + 1}: {analysis.stratum.title}"))
        _results(sheet, analysis, plan, found_here, suffix, 3 if several else 2)
        if number < PARTS_IN_FULL or len(analyses) <= PARTS_IN_FULL:
            _inside(sheet, analysis, suffix, 3 if several else 2)
    if len(analyses) > PARTS_IN_FULL:
        text = f"Load balance, depth and decay are drawn for the first {PARTS_IN_FULL} parts"
        sheet.add(Paragraph(f"{text}; name single runs to see others."))
    sheet.section("What it costs", 2, tables.cost(analyses))
    sheet.add(*protocol.made(found, analyses))
    sheet.add(*protocol.every_run(analyses))
    shown = [n for a in analyses for n in a.metrics]
    shown += [n for n in (names.BALANCE_MAX_VIO_FLOOR, *tables.COST) if any(a.has(n) for a in analyses)]
    stuck = (names.DECAY_AT_BOUND_FRACTION, names.DECAY_DEAD_FRACTION)
    shown += [n for n in stuck if any(a.has(n) for a in analyses)]
    sheet.add(*protocol.glossary(analyses, designs, shown))
    return Document(found.title, subtitle, sheet.blocks), sheet.pictures


def _effects(analysis: Analysis, plan: Factorial | None) -> dict[str, Effects]:
    if plan is None:
        return {}
    wanted = [analysis.main, *tables.asides(analysis)]
    found = {name: effects(analysis, plan, name) for name in wanted}
    if found[analysis.main] is None:
        return {}
    return {name: e for name, e in found.items() if e is not None}


def _results(
    sheet: Sheet,
    analysis: Analysis,
    plan: Factorial | None,
    found: dict[str, Effects],
    suffix: str,
    level: int,
) -> None:
    figures = sheet.folder
    if not analysis.arms:
        sheet.add(Paragraph("No run of this part has a result."))
        return
    known = metric(analysis.main)
    sheet.section(
        "Results",
        level,
        dots.draw(analysis, plan, analysis.main, figures, f"result{suffix}"),
        tables.results(analysis),
    )
    if analysis.baseline is not None and analysis.differences.get(analysis.main):
        intro: list[Part] = [
            "The baseline is ",
            Code(analysis.baseline.name),
            f": {analysis.why}. Choose another one with ",
        ]
        intro += [Code("--baseline 'KEY=VALUE …'"), "."]
        sheet.section("Compared with the baseline", level, Paragraph(intro), tables.comparisons(analysis))
    if plan is not None and found:
        text = (
            f"The arms are every combination of {words.plural(len(plan.switches), 'switch', 'switches')}, so each "
            f"switch is seen in {len(plan.cells) // 2} pairs of arms that differ in it alone."
        )
        sheet.section(
            "Each switch, alone and together",
            level,
            Paragraph(text),
            tables.effects(plan, found),
            Paragraph(interactions(plan, found[analysis.main])) if analysis.main in found else None,
        )
    main_curve = curves.draw(analysis, analysis.main, figures, f"curve_{_slug(analysis.main)}{suffix}")
    sheet.section(
        "Learning curves",
        level,
        main_curve,
        curves.draw_gaps(analysis, analysis.main, figures, f"difference_{_slug(known.name)}{suffix}"),
        curves.draw(analysis, names.TRAIN_LOSS, figures, f"curve_train_loss{suffix}")
        if analysis.main != names.TRAIN_LOSS and analysis.has(names.TRAIN_LOSS)
        else None,
    )


def _inside(sheet: Sheet, analysis: Analysis, suffix: str, level: int) -> None:
    figures = sheet.folder
    sheet.section(
        "Load balance of the experts",
        level,
        balance.draw_worst(analysis, figures, f"balance{suffix}"),
        balance.draw_layers(analysis, figures, f"balance_layers{suffix}"),
    )
    sheet.section(
        "Along the depth",
        level,
        depth.draw_profile(analysis, figures, f"depth{suffix}"),
        depth.draw_sources(analysis, figures, f"depth_sources{suffix}"),
    )
    sheet.section("Forgetting", level, decay.draw(analysis, figures, f"decay{suffix}"))


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
