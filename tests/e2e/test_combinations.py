"""Every option of every group trains two steps; so does every combination of decay, router and residual."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch

from k3lab.config.errors import UserError
from k3lab.config.load import load
from k3lab.config.registry import component, groups, options
from k3lab.data.loader import train_loader
from k3lab.data.prepare import prepare
from k3lab.model.build import build_model
from k3lab.router.base import end_of_global_batch
from k3lab.tracking.local import read_summary
from k3lab.training.module import cross_entropy_sum
from k3lab.training.run import run_training
from tests.e2e.conftest import SMALL

COMBINATIONS = list(itertools.product(*(options(g) for g in ("decay", "router", "residual"))))
# Options that only name a preset of size: their machines are audited, not trained, on two cores.
TOO_LARGE = {("model", name) for name in options("model") if name not in ("nano", "tiny")}
NEEDS_GPU = {("trainer", "gpu")}
ELSEWHERE = ("experiment", "launch", "sweep", "tracking")  # composed and run by tests of their own


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for i in range(6):
        lines = [f"the quick brown fox {i}.{j} jumps over the lazy dog\n" for j in range(20)]
        (folder / f"{i}.txt").write_text("".join(lines))
    return folder


@pytest.mark.parametrize(("decay", "router", "residual"), COMBINATIONS)
def test_every_combination_of_the_techniques(decay: str, router: str, residual: str, corpus: Path) -> None:
    config = load([f"decay={decay}", f"router={router}", f"residual={residual}", f"data.path={corpus}", *SMALL])
    source = component("data", "text")(config.data, config.seed)
    source.prepare()
    torch.manual_seed(0)
    model = build_model(config, source.vocab_size)
    optimizer = component("optim", "adamw").build(config.optim, model)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for batch in train_loader(source, config.data, 0, 2, 1, 0, 1, 0):
        output = model(batch["tokens"], batch.get("mask"))
        loss = cross_entropy_sum(output.logits_BTV, batch["targets"]) / batch["targets"].numel()
        loss = loss + sum(r.aux_loss for r in output.routings if r.aux_loss is not None)
        loss.backward()
        for gate, routing in zip(model.routers, output.routings, strict=True):
            gate.count(routing)
        end_of_global_batch(model.routers)
        optimizer.step()
        optimizer.zero_grad()
        assert math.isfinite(loss.item())
    moved = [name for name, p in model.named_parameters() if not torch.equal(p, before[name])]
    still = set(before) - set(moved)
    assert all("query" in name or "key_norm" in name for name in still), f"untrained: {still}"
    if router in ("quantile", "quantile_exact", "sign_bias"):
        assert all(gate.bias.abs().sum() > 0 for gate in model.routers)


def corpora(option: str, corpus: Path, folder: Path) -> list[str]:
    """What a data option needs to find its files."""
    if option == "shards":
        prepare([corpus], folder / "tokens", None, 0.3)
        return [f"data.path={folder / 'tokens'}"]
    if option == "hub":
        files = ",".join(str(p) for p in sorted(corpus.iterdir()))
        where = [f"data.files=[{files}]", f"data.cache={folder / 'cache'}"]
        return ["data.dataset=text", *where, "data.validation_fraction=0.3"]
    return [f"data.path={corpus}"] if option == "text" else []


@pytest.mark.parametrize(("group", "option"), [(g, o) for g in groups() if g not in ELSEWHERE for o in options(g)])
def test_every_option_trains_two_steps(group: str, option: str, corpus: Path, tmp_path: Path) -> None:
    if (group, option) == ("data", "hub"):
        pytest.importorskip("datasets")
    if (group, option) in TOO_LARGE | NEEDS_GPU:
        load([f"{group}={option}"])
        return
    small = (
        [s for s in SMALL if not s.startswith(f"{group}.")] if group in ("model", "trainer", "diagnostics") else SMALL
    )
    if group == "data":  # a synthetic task has its own smallest sequence
        small = [s for s in SMALL if not s.startswith("data.seq_len") or option in ("text", "shards", "hub")]
    data = corpora(option if group == "data" else "text", corpus, tmp_path)
    config = load([f"{group}={option}", "trainer.max_steps=2", "tracking=none", *small, *data])
    if not config.diagnostics.on_schedule:
        with pytest.raises(UserError, match=f"k3lab eval run=FOLDER diagnostics={option}"):
            run_training(config, tmp_path / "run")
        assert not (tmp_path / "run").exists()
        return
    assert run_training(config, tmp_path / "run") == 0
    done = read_summary(tmp_path / "run")
    assert done is not None
    assert (done["status"], done["steps"]) == ("finished", 2)
    assert math.isfinite(done["metrics"]["train/loss"])
