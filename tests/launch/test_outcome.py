"""The table that ends a training."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from k3lab.launch.outcome import print_outcome
from k3lab.tracking.local import write_summary

METRICS = {
    "val/loss": 1.7,
    "val/bits_per_byte": 2.4526,
    "data/unigram_bits_per_byte": 4.6377,
    "balance/max_vio": 0.21,
    "balance/max_vio_floor": 0.1,
    "perf/tokens_per_s": 9905.0,
    "val/accuracy": None,
}


@pytest.mark.parametrize("status", ["finished", "failed"])
def test_figures_stand_beside_what_they_are_held_against(tmp_path: Path, status: str) -> None:
    write_summary(tmp_path, {"status": status, "steps": 200, "wall_s": 63.2, "metrics": METRICS})
    out = io.StringIO()
    print_outcome(tmp_path, Console(file=out, width=100))
    text = out.getvalue()
    if status == "failed":
        assert text == ""
        return
    assert "200 steps, 63 s" in text
    for row in ("2.453", "4.638 (entropy of single bytes)", "0.1 (sampling floor)", "9,905 tokens/s"):
        assert row in text
    assert "accuracy" not in text
