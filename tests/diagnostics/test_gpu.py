"""On a GPU: what the diagnostics of a training cost, against its steps, and that they change none of its bits."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from k3lab.config.load import load
from k3lab.diagnostics.callback import DiagnosticsCallback
from k3lab.tracking.local import read_metrics
from k3lab.training.metrics import Speed
from k3lab.training.run import run_training

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

OVERRIDES = [
    *("model=small", "trainer=gpu", "trainer.max_steps=40", "trainer.val_batches=0", "trainer.display=false"),
    *("data.seq_len=1024", "data.batch_size=32", "tracking=none", "diagnostics.figures=false"),
]


def train(folder: Path, *overrides: str) -> dict[str, dict[int, float]]:
    corpus = folder / "corpus.txt"
    folder.mkdir()
    corpus.write_text("".join(f"line {i * i % 9973} of a corpus\n" for i in range(20000)))
    assert run_training(load([*OVERRIDES, f"data.path={corpus}", *overrides]), folder / "run") == 0
    return read_metrics(folder / "run")


@pytest.mark.parametrize("compiled", [False, True])
def test_cost_and_bits(
    compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times: dict[str, list[float]] = {"step": [], "probe": [], "load": []}

    def timed(owner: type, method: str, kind: Any) -> None:
        inner = getattr(owner, method)

        def outer(*args: Any) -> None:
            torch.cuda.synchronize()
            start = time.perf_counter()
            inner(*args)
            torch.cuda.synchronize()
            if (name := kind(*args)) is not None:
                times[name].append(time.perf_counter() - start)

        monkeypatch.setattr(owner, method, outer)

    def of_hook(callback: Any, trainer: Any, module: Any, *_: Any) -> str:
        return "probe" if module.step % 10 == 0 else "load"

    timed(DiagnosticsCallback, "on_train_batch_end", of_hook)
    began: list[float] = []
    stop = Speed.stop
    monkeypatch.setattr(Speed, "start", lambda self: began.append(time.perf_counter()))

    def stopped(self: Any) -> None:
        torch.cuda.synchronize()
        times["step"].append(time.perf_counter() - began[-1])
        stop(self)

    monkeypatch.setattr(Speed, "stop", stopped)
    rhythm = ("diagnostics.every=10", "trainer.log_every=1", f"trainer.compile={str(compiled).lower()}")
    watched = train(tmp_path / "on", *rhythm)
    step, probe, load_s = (statistics.median(times[k][1:]) for k in ("step", "probe", "load"))
    share = probe / (200 * step) + load_s / (10 * step)
    with capsys.disabled():
        print(
            f"\ncompiled={compiled}: step {1e3 * step:.1f} ms, probe {1e3 * probe:.1f} ms, load {1e3 * load_s:.2f} ms"
        )
        print(f"share of the time at every=200, log_every=10: {share:.2%}")
    assert share < 0.01
    if not compiled:  # the same kernels in the same order
        calm = train(tmp_path / "off", "diagnostics=off", "trainer.compile=false")
        assert calm["train/loss"] == watched["train/loss"]
