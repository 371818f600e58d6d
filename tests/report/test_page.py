"""The page, its twin and results.csv, from synthetic runs."""

import csv
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from k3lab.config.errors import UserError
from k3lab.report.document import Cell, Code, Commands, Document, Lead, Paragraph, Strong, Table
from k3lab.report.markdown import render as to_markdown
from k3lab.tracking import names
from tests.report import synthetic
from tests.report.synthetic import write_run

SEEDS = (0.0, 0.02, -0.03)


def value(on: tuple[bool, ...], seed: int) -> float:
    return 1.5 - 0.03 * on[0] - 0.05 * on[2] + SEEDS[seed] + 0.001 * ((sum(on) * 7 + seed * 3) % 5)


def inside(on: tuple[bool, ...], seed: int, step: int) -> dict[str, float]:
    """What diagnostics log: two routed layers, four sublayers, and sources under attention over depth."""
    if step % 10:
        return {}
    found = {
        names.BALANCE_MAX_VIO_FLOOR: 0.2,
        names.DECAY_HALF_LIFE_MEDIAN: 10.0 + step,
        names.DECAY_DEAD_FRACTION: 0.0,
    }
    for layer in range(2):
        found[names.layer(names.BALANCE_MAX_VIO, layer)] = (0.3 if on[1] else 1.2) + 0.01 * seed + 0.02 * layer
        found[names.layer(names.DECAY_HALF_LIFE_MEDIAN, layer)] = 10.0 + layer
        found[names.layer(names.DECAY_HALF_LIFE_Q10, layer)] = 5.0
        found[names.layer(names.DECAY_HALF_LIFE_Q90, layer)] = 80.0
    found[names.BALANCE_MAX_VIO] = found[names.layer(names.BALANCE_MAX_VIO, 1)]
    for i in range(4):
        found[names.depth(names.DEPTH_OUTPUT_RMS, i)] = 0.1 * (i + 1)
        found[names.depth(names.DEPTH_GRAD_RMS, i)] = 0.01 / (i + 1)
    if on[2]:
        found |= {names.source_weight(i, s): 1 / (2 + s) for i in (1, 2, None) for s in range(2)}
    return found


class Wellformed(HTMLParser):
    """Checks that tags nest, and collects what a reader would see and what a browser would fetch."""

    VOID = ("meta", "img", "br", "link")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.sources: list[str] = []
        self.feed(page)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [v or "" for k, v in attrs if k in ("src", "href")]
        if tag == "img":
            assert dict(attrs).get("alt"), "a picture without words"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def test_eight_arms_three_seeds(tmp_path: Path, report: Callable[..., Any]) -> None:
    synthetic.factorial(tmp_path / "lab", value, 3, inside, noise=0.05)
    folder, page, twin, lines = report()
    seen = Wellformed(page)
    assert all(s.startswith("data:image/png;base64,") for s in seen.sources), "the page fetches something"
    text = " ".join(seen.text.split())
    drawn = {f.stem for f in (folder / "figures").glob("*.png")}
    assert drawn == {
        *("result", "curve_val_loss", "difference_val_loss", "curve_train_loss"),
        *("balance", "balance_layers", "depth", "depth_sources", "decay"),
    }
    assert len(seen.sources) == len(drawn) == len(re.findall(r"!\[", twin))
    # The answer comes first, in the page, in the twin and on the terminal.
    assert lines[0].startswith("All three switched on together")
    assert "in validation loss better by 0.079" in lines[0]
    assert text.index("All three switched on together") < text.index("What the arms are") < text.index("Results")
    assert "residual=block_attnres instead of prenorm" in text
    assert "lowers load imbalance (MaxVio) by 0.90" in text
    assert "no interaction" in text or "do not simply add up" in text
    for words in (
        "8 arms × 3 seeds, 24 runs, 40 optimizer steps",
        "What it costs",
        "What the words mean",
        "torch 2.13.0",
    ):
        assert words in text
    assert "from the fastest tenth of the channels to the slowest" in text
    assert "What is missing" not in text
    assert not re.search(r"nan", text, re.IGNORECASE)
    assert lines[0].split(" (")[0] in twin
    assert "k3lab train" in text, "the commands are rebuilt from the configurations"
    rows = list(csv.DictReader((folder / "results.csv").open()))
    assert len(rows) == 24
    assert {r["decay"] for r in rows} == {"softplus", "lower_bound"}
    by_arm = [float(r["val/loss"]) for r in rows if r["arm"] == rows[0]["arm"]]
    assert len(by_arm) == 3
    assert sum(by_arm) / 3 == pytest.approx(sum(value((False, False, False), s) for s in range(3)) / 3)


def test_names_that_look_like_markup_stay_text(tmp_path: Path, report: Callable[..., Any]) -> None:
    evil = "/data/<script>alert(1)</script>|`x`$a_b$&amp;"
    for i, path in enumerate((evil, "/data/plain")):
        for decay in ("softplus", "lower_bound"):
            error = {"error": "<img src=x onerror=alert(2)>"} if i else {}
            status = "failed" if i else "finished"
            options = [f"decay={decay}", f'data.path="{path}"']
            write_run(tmp_path / "lab" / f"{decay}{i}", options, status=status, summary=error)
    _, page, twin, _ = report()
    seen = Wellformed(page)
    assert "<script" not in page
    assert "<img src=x" not in page
    assert evil in seen.text
    assert all(s.startswith("data:image/png") for s in seen.sources)
    assert "\\<img" in twin


def test_a_baseline_another_metric_and_another_place(tmp_path: Path, report: Callable[..., Any]) -> None:
    for i, decay in enumerate(("softplus", "lower_bound", "none")):
        for seed in range(2):
            write_run(
                tmp_path / "lab" / f"{decay}{seed}", [f"decay={decay}", f"seed={seed}"], 1.5 + 0.1 * i + 0.01 * seed
            )
    out = tmp_path / "elsewhere" / "deep"
    folder, page, _, lines = report(baseline="decay=none", metric=names.VAL_ACCURACY, out=out)
    assert folder == out
    assert "decay=softplus has the best validation accuracy" in lines[0]
    assert lines[1].startswith("decay=softplus: better by")
    assert lines[1].endswith("against the baseline none.")
    assert "named on the command line" in Wellformed(page).text
    # A second report in the same place takes away the figures of the first.
    assert (folder / "figures" / "curve_val_accuracy.png").exists()
    report(out=out)
    assert not (folder / "figures" / "curve_val_accuracy.png").exists()


def test_one_run_has_a_page_without_verdicts(tmp_path: Path, report: Callable[..., Any]) -> None:
    write_run(tmp_path / "lab" / "a")
    _, page, _, lines = report()
    assert lines[0].startswith("One arm, 1 seed: validation loss is 1.500 nats a token")
    text = Wellformed(page).text
    assert "better by" not in text
    assert "nothing here is a verdict" in text


def test_several_parts_and_many_arms(tmp_path: Path, report: Callable[..., Any]) -> None:
    for task in ("mqar", "palindrome", "stack", "parity"):
        for lr in range(1, 3 if task != "mqar" else 15):
            write_run(tmp_path / "lab" / f"{task}{lr}", [f"data={task}", f"optim.lr={lr}e-3"], 1 / lr)
    folder, page, _, lines = report(metric=names.VAL_ACCURACY)
    assert "compared in 4 parts" in lines[0]
    assert lines[1].startswith("data=mqar: Of 14 arms, optim.lr=0.014 has the best")
    assert "With one seed that is no verdict" in lines[1]
    text = Wellformed(page).text
    assert "Part 4: data=" in text
    assert "All parts at a glance" in text
    assert len(list(csv.DictReader((folder / "results.csv").open()))) == 14 + 6


def test_runs_without_any_step_are_told_of(tmp_path: Path, report: Callable[..., Any]) -> None:
    folder = write_run(tmp_path / "lab" / "a", status="failed", summary={"error": "the corpus is empty", "steps": 0})
    (folder / "metrics.jsonl").unlink()
    _, page, _, lines = report()
    assert lines[0] == "No run has a result yet."
    assert "the corpus is empty" in Wellformed(page).text


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, report: Callable[..., Any]) -> None:
    write_run(tmp_path / "lab" / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--out .*file: cannot be written"):
        report(out=tmp_path / "file")


def test_markdown_of_every_mark() -> None:
    blocks = [
        Lead(["An ", Strong("answer"), " with ", Code("a|b`c")], ["1 < 2"]),
        Paragraph("snake_case *not bold* # [x]"),
        Table(["a|b", "n"], [[Cell("x|y"), Cell("1")]], "below", (0,)),
        Commands(["k3lab train decay='a b'"]),
    ]
    text = to_markdown(Document("T_1", "sub", blocks))
    assert "# T\\_1" in text
    assert "An **answer** with `` a\\|b`c ``" in text
    assert "snake\\_case \\*not bold\\* \\# \\[x\\]" in text
    assert "| a\\|b | n |\n| --- | ---: |\n| x\\|y | 1 |\n\nbelow" in text
    assert "```bash\nk3lab train decay='a b'\n```" in text
