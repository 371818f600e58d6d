"""On a GPU: bf16 autocast, fused optimizer, own clipping, and an interrupted run that ends with the same bits."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from k3lab.config.load import load
from k3lab.tracking import names
from k3lab.training.module import TrainingModule
from k3lab.training.run import run_training

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def config(tmp_path: Path, *overrides: str) -> Any:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"line {i * i % 97} of a corpus\n" for i in range(4000)))
    small = ["model.hidden_size=64", "model.heads=2", "data.seq_len=64", "data.batch_size=8", f"data.path={corpus}"]
    rhythm = ["trainer.max_steps=8", "trainer.log_every=2", "trainer.val_every=4", "trainer.val_batches=1"]
    watched = ["diagnostics.every=3", "model.dropout=0.1", "trainer.accumulate=2", "tracking=none"]
    return load([*small, *rhythm, *watched, f"paths.output={tmp_path}", *overrides])


def series(folder: Path) -> dict[tuple[str, int], float]:
    found = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        values = json.loads(line)
        step, _ = values.pop("step"), values.pop("time")
        found |= {(name, step): value for name, value in values.items() if not name.startswith("perf/")}
    return found


def test_an_interrupted_run_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = config(tmp_path)
    assert run_training(built, tmp_path / "whole") == 0
    metrics = json.loads((tmp_path / "whole" / "summary.json").read_text())["metrics"]
    assert metrics[names.PERF_PEAK_MEMORY_GIB] > 0
    original = TrainingModule.configure_gradient_clipping

    def interrupted(self: TrainingModule, *arguments: Any, **keywords: Any) -> None:
        if self.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        original(self, *arguments, **keywords)

    with monkeypatch.context() as patched:
        patched.setattr(TrainingModule, "configure_gradient_clipping", interrupted)
        assert run_training(built, tmp_path / "parts") == 143
    assert run_training(built, tmp_path / "parts", resume=True) == 0
    assert series(tmp_path / "parts") == series(tmp_path / "whole")


def test_a_compiled_model_learns_the_same(tmp_path: Path) -> None:
    assert run_training(config(tmp_path, "trainer.compile=true", "model.dropout=0"), tmp_path / "compiled") == 0
    assert run_training(config(tmp_path, "model.dropout=0"), tmp_path / "eager") == 0
    compiled, eager = series(tmp_path / "compiled"), series(tmp_path / "eager")
    for step in range(1, 9):
        assert compiled[names.TRAIN_LOSS, step] == pytest.approx(eager[names.TRAIN_LOSS, step], rel=2e-2)
