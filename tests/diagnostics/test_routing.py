"""The study of routing by hand: pairs of experts, classes and experts, drops batch by batch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from k3lab import plotting
from k3lab.config.errors import UserError
from k3lab.diagnostics.routing import (
    Routing,
    RoutingSettings,
    Tally,
    layer_metrics,
    lift_of_classes,
    lift_of_pairs,
    specialisation,
    tally,
)
from k3lab.diagnostics.study import Subject
from k3lab.diagnostics.tokens import TokenClasses

IDS = torch.tensor([[0, 1], [1, 0], [0, 2], [3, 2]])


def test_pairs_by_hand() -> None:
    classes = TokenClasses(["a", "b"], torch.tensor([0, 0, 1]))
    found = tally(IDS, torch.tensor([0, 1, 2, 2]), classes, 4)
    assert found.pairs_EE.tolist() == [[3, 2, 1, 0], [2, 2, 0, 0], [1, 0, 2, 1], [0, 0, 1, 1]]
    assert found.classes_CE.tolist() == [[2, 2, 0, 0], [1, 0, 2, 1]]
    assert found.tokens_VE is not None
    assert found.tokens_VE.tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 2, 1]]
    # closest partners share 2, 2, 1 and 1 of the 8 assignments
    assert layer_metrics(found, 2)["routing/coactivation"] == pytest.approx(6 / 8)


def test_large_vocabularies_are_not_told_apart() -> None:
    classes = TokenClasses(["a", "b"], torch.arange(2000) % 2)
    found = tally(IDS, torch.tensor([0, 1, 2, 3]), classes, 4)
    assert found.tokens_VE is None
    assert "routing/token_specialisation" not in layer_metrics(found, 2)


def test_specialisation_by_hand() -> None:
    assert specialisation(torch.diag(torch.tensor([20.0, 30.0, 50.0]))) == pytest.approx(1)
    assert specialisation(torch.full((3, 4), 25.0)) == 0
    assert specialisation(torch.tensor([[10.0], [20.0]])) == 0  # one expert: no choice
    # class 0 always goes to expert 0, class 1 to either: I = ln 2 − ½ ln 2 − … of a table of 1/2, 0, 1/4, 1/4
    counts = torch.tensor([[500.0, 0.0], [250.0, 250.0]])
    of_expert = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) + 1 / 2000
    of_class, joint = math.log(2) + 1 / 2000, 1.5 * math.log(2) + 2 / 2000
    assert specialisation(counts) == pytest.approx((of_class + of_expert - joint) / of_expert)


def test_chance_does_not_look_like_specialisation() -> None:
    torch.manual_seed(0)
    cells = torch.randint(50 * 16, (4000,))
    counts = torch.bincount(cells, minlength=50 * 16).view(50, 16).double()
    assert specialisation(counts) < 0.01


def test_lifts_by_hand() -> None:
    pairs = torch.full((4, 4), 1.0) + 2 * torch.eye(4)  # each of the six pairs once
    lift = lift_of_pairs(pairs, 2)
    assert lift.diagonal().isnan().all()
    assert lift[~torch.eye(4, dtype=torch.bool)].tolist() == pytest.approx([1.0] * 12)
    found = lift_of_classes(torch.tensor([[6.0, 2.0, 0.0], [0.0, 4.0, 0.0]]))
    # 8 and 4 of 12; expert 0 gets class 0 alone: 1 / (8/12)
    assert found[:, 0].tolist() == pytest.approx([1.5, 0])
    assert found[:, 1].tolist() == pytest.approx([(2 / 6) / (8 / 12), (4 / 6) / (4 / 12)])
    assert found[:, 2].isnan().all()


def subject(model: Any, batches: list[dict[str, Tensor]], folder: Path = Path()) -> Subject:
    return Subject(model.eval(), batches, folder, 3, 16, lambda ids: "abcdefg 0123,.(\n"[ids[0]])


def test_drops_are_counted_batch_by_batch(make_model: Any, batch: dict[str, Tensor]) -> None:
    model = make_model("prenorm")

    def load(tokens: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return [r.counts_E for r in model.eval()(tokens).routings]

    other = {k: v.flip(0) if k == "tokens" else v for k, v in batch.items()}
    other["tokens"] = (other["tokens"] + 3) % 16
    metrics, data, _ = Routing(RoutingSettings(sequences=2, capacities=[1.0])).measure(subject(model, [batch, other]))
    for row, i in enumerate((1, 2)):
        loads = [load(b["tokens"])[row] for b in (batch, other)]
        # 36 tokens, 2 of 6 experts each: 12 a batch and expert
        dropped = sum(float((c - 12).clamp_min(0).sum()) for c in loads)
        assert metrics[f"balance/layer_{i:02d}/drop_rate_1.00"] == pytest.approx(dropped / 144)
        assert data["load"][row] == (loads[0] + loads[1]).tolist()
    assert (data["batches"], data["assignments"]) == (2, 144)
    assert metrics["routing/coactivation_chance"] == pytest.approx(1 / 5)


def test_padding_is_left_out(make_model: Any, batch: dict[str, Tensor]) -> None:
    mask = torch.ones_like(batch["tokens"], dtype=torch.bool)
    mask[0, -3:] = False
    _, data, _ = Routing(RoutingSettings()).measure(subject(make_model("prenorm"), [{**batch, "mask": mask}]))
    assert data["assignments"] == (36 - 3) * 2
    assert sum(map(sum, data["class_counts"]["1"])) == (36 - 3) * 2


def test_files(make_model: Any, batch: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plotting, "DPI", 30)
    model = make_model("prenorm")
    metrics = Routing(RoutingSettings()).run(subject(model, [batch], tmp_path))
    folder = tmp_path / "figures" / "routing"
    assert {p.stem for p in folder.glob("*.png")} == {"load", "specialisation", "coactivation"}
    left = json.loads((folder / "routing.json").read_text())
    assert left["layers"] == [1, 2]
    assert left["classes"][0] == "line break"
    assert len(left["pair_counts"]["2"]) == 6
    assert not any(m._forward_hooks for m in model.modules())
    assert {"balance/max_vio", "routing/specialisation", "routing/layer_02/token_specialisation"} <= set(metrics)


def test_a_dense_model_is_refused(make_model: Any, batch: dict[str, Tensor]) -> None:
    model = make_model("prenorm")
    for layer in model.layers:
        layer.ffn.router = None
    with pytest.raises(UserError, match="no routers"):
        Routing(RoutingSettings()).measure(subject(model, [batch]))


def test_settings_refuse() -> None:
    with pytest.raises(ValueError, match=r"capacities=\[\]"):
        RoutingSettings(capacities=[])
    with pytest.raises(ValueError, match="capacities=-1"):
        RoutingSettings(capacities=[1.0, -1.0])


def test_single_expert_routing_has_no_pairs() -> None:
    alone = Tally(torch.diag(torch.tensor([3.0, 1.0])), torch.tensor([[3.0, 1.0]]), None)
    assert layer_metrics(alone, 1)["routing/coactivation"] == 0
