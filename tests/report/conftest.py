"""Analyses of synthetic runs, and pages of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k3lab import plotting
from k3lab.report.analysis import Analysis, analyse
from k3lab.report.arms import group, strata
from k3lab.report.collect import collect
from k3lab.report.run import run_report


@pytest.fixture
def analyses(tmp_path: Path) -> Callable[..., list[Analysis]]:
    """Return a function that reads an experiment below the test's folder."""

    def build(*targets: str, baseline: str | None = None, metric: str | None = None) -> list[Analysis]:
        found = collect(list(targets) or ["lab"], tmp_path)
        return [analyse(part, baseline, metric) for part in strata(group(found.runs))]

    return build


@pytest.fixture
def report(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that writes a report and returns its folder, page, Markdown and printed lines."""

    monkeypatch.setattr(plotting, "DPI", 40)  # drawing is what takes time

    def build(*targets: str, **options: Any) -> tuple[Path, str, str, list[str]]:
        capsys.readouterr()
        assert run_report(list(targets) or ["lab"], tmp_path, **options) == 0
        lines = capsys.readouterr().out.splitlines()
        page = Path(lines[-1])
        return page.parent, page.read_text(), (page.parent / "report.md").read_text(), lines

    return build
