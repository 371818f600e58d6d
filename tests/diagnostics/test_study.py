"""Pieces of held-out data, losses of single sequences, and what every study leaves."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from k3lab.diagnostics.study import Study, Subject, forward, kind, pieces, row_losses


def test_pieces_cover_what_has_targets() -> None:
    tokens = torch.arange(10).view(5, 2)
    targets = tokens.clone()
    targets[3] = -100  # fills up the end of a set
    batches = [{"tokens": tokens, "targets": targets}, {"tokens": tokens + 10, "targets": tokens}]
    found = [(number, piece["tokens"][:, 0].tolist()) for number, piece in pieces(batches, 2)]
    assert found == [(0, [0, 2]), (0, [4, 8]), (1, [10, 12]), (1, [14, 16]), (1, [18])]
    assert list(pieces([{"tokens": tokens, "targets": torch.full_like(tokens, -100)}], 2)) == []


def test_losses_of_sequences() -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(3, 4, 5), torch.randint(5, (3, 4))
    targets[1, 2:] = -100
    found = row_losses(logits, targets)
    for row in range(3):
        expected = F.cross_entropy(logits[row], targets[row], ignore_index=-100, reduction="sum")
        assert found[row].item() == pytest.approx(expected.item(), rel=1e-6)
    assert found.dtype == torch.float64


def test_a_batch_says_which_documents_it_holds() -> None:
    def model(tokens: Any, mask: Any, **more: Any) -> Any:
        return tokens, mask, more

    assert forward(model, {"tokens": 1, "mask": 2, "targets": 3}) == (1, 2, {})
    assert forward(model, {"tokens": 1, "documents": 4}) == (1, None, {"documents_BT": 4})


def test_kind_of_a_sublayer(make_model: Any) -> None:
    model = make_model("prenorm")
    assert [kind(model, i) for i in (0, 1, 4)] == ["toymixer", "toyffn", "plainmixer"]


@dataclass(frozen=True)
class LookSettings:
    name: str = "look"
    batches: int = 3


class Look(Study):
    def measure(self, subject: Subject) -> tuple[dict[str, float], dict[str, Any], Callable[[Path], None]]:
        return {"a/b": math.nan}, {"matrix": [[1.0]]}, lambda folder: (folder / "a.png").write_bytes(b"")


def test_numbers_and_figures_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subject = Subject(None, [], tmp_path, 7, 0, str)
    metrics = Look(LookSettings()).run(subject)
    assert list(metrics) == ["a/b"]
    folder = tmp_path / "figures" / "look"
    assert sorted(p.name for p in folder.iterdir()) == ["a.png", "look.json"]
    left = json.loads((folder / "look.json").read_text())
    assert left == {
        "step": 7,
        "settings": {"name": "look", "batches": 3},
        "metrics": {"a/b": None},
        "matrix": [[1.0]],
    }
    assert str(folder) in capsys.readouterr().err
