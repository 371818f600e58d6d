"""A run that was killed, interrupted or damaged ends with the very bits of an undisturbed one."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.resume.conftest import Trained, Trainers


def same_weights(one: Trained, other: Trained) -> None:
    """All tensors of the last checkpoints are equal: weights, router state, optimizer, random generators."""
    for part in ("model", "optimizer", "rng"):
        left, right = (
            load_file(t.folder / "checkpoints" / "step_00000010" / f"{part}.safetensors") for t in (one, other)
        )
        assert left.keys() == right.keys()
        for name in left:
            assert left[name].equal(right[name]), f"{part}: {name}"


def test_undisturbed(undisturbed: Trained) -> None:
    summary, series = undisturbed.summary, undisturbed.series()
    assert summary["status"] == "finished"
    assert (summary["steps"], summary["tokens"]) == (10, 10 * 8 * 64)
    assert undisturbed.checkpoints == ["step_00000008", "step_00000010"]
    assert [s for n, s in series if n == "train/loss"] == list(range(1, 11))
    assert [s for n, s in series if n == "val/loss"] == [4, 8, 10]
    assert [s for n, s in series if n == "balance/max_vio"] == [0, 3, 6, 9, 10]
    assert series["train/loss", 10] < series["train/loss", 1] - 0.3
    assert summary["metrics"]["train/loss"] == series["train/loss", 10]
    assert all(summary["environment"][k] for k in ("python", "torch", "lightning", "k3lab", "device"))


@pytest.mark.parametrize(
    "kills",
    [
        [("micro_batch", 2), ("micro_batch", 7), ("optimizer_step", 3)],  # before a checkpoint, in mid-accumulation
        [("checkpoint", 4), ("checkpoint", 1), ("optimizer_step", 6)],  # while one is being written
    ],
    ids=["training", "saving"],
)
def test_kill_and_resume(train: Trainers, undisturbed: Trained, tmp_path: Path, kills: list) -> None:
    for number, (at, count) in enumerate(kills):
        killed = train(tmp_path / "run", resume=number > 0, at=at, count=count)
        assert killed.code == -signal.SIGKILL, killed.errors
        assert killed.summary["status"] == "running"
    done = train(tmp_path / "run", resume=True)
    assert done.code == 0, done.errors
    assert done.series() == undisturbed.series()
    assert done.summary["metrics"].keys() == undisturbed.summary["metrics"].keys()
    same_weights(done, undisturbed)
    assert done.checkpoints == ["step_00000008", "step_00000010"], "nothing temporary is left"


def test_same_command_same_bits_whatever_is_watched(train: Trainers, undisturbed: Trained, tmp_path: Path) -> None:
    """No validation, no diagnostics, no checkpoints, batches from workers: the training itself is the same."""
    calm = train(
        tmp_path / "run",
        "trainer.val_batches=0",
        "diagnostics.enabled=false",
        "checkpoint.every=100",
        "trainer.workers=2",
    )
    assert calm.code == 0, calm.errors
    assert calm.series("train/") == undisturbed.series("train/")
    same_weights(calm, undisturbed)


@pytest.mark.parametrize(("sig", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_save_and_stop(train: Trainers, undisturbed: Trained, tmp_path: Path, sig: int, code: int) -> None:
    stopped = train(tmp_path / "run", at="micro_batch", count=9, sig=sig)  # first half of step 5
    assert stopped.code == code, stopped.errors
    assert "Traceback" not in stopped.errors
    assert stopped.errors.splitlines()[-1].startswith("k3lab: interrupted after step 5; step_00000005 is saved")
    assert (stopped.summary["status"], stopped.summary["steps"]) == ("interrupted", 5)
    done = train(tmp_path / "run", resume=True)
    assert done.code == 0, done.errors
    assert done.series() == undisturbed.series()
    same_weights(done, undisturbed)


def test_a_second_interrupt_aborts_at_once(train: Trainers, undisturbed: Trained, tmp_path: Path) -> None:
    aborted = train(tmp_path / "run", at="micro_batch", count=9, sig=signal.SIGINT, times=2)
    assert aborted.code == 130, aborted.errors
    assert "Traceback" not in aborted.errors
    assert (aborted.summary["status"], aborted.summary["steps"]) == ("interrupted", 4)
    assert train(tmp_path / "run", resume=True).series() == undisturbed.series()


def test_a_damaged_checkpoint_is_gone_behind(train: Trainers, undisturbed: Trained, tmp_path: Path) -> None:
    train(tmp_path / "run", at="micro_batch", count=14)
    file = tmp_path / "run" / "checkpoints" / "step_00000006" / "optimizer.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    done = train(tmp_path / "run", resume=True)
    assert done.code == 0, done.errors
    assert "step_00000006/optimizer.safetensors is damaged" in done.errors
    assert done.series() == undisturbed.series()
    for file in (tmp_path / "run" / "checkpoints").glob("*/model.safetensors"):
        file.write_bytes(b"")
    lost = train(tmp_path / "run", "trainer.max_steps=12", resume=True)
    assert lost.code == 2
    assert "no usable checkpoint is left" in lost.errors.splitlines()[-1]


def test_a_full_disk_loses_nothing(train: Trainers, undisturbed: Trained, tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: weights still fit, the optimizer's state does not."""
    weights = undisturbed.folder / "checkpoints" / "step_00000010" / "model.safetensors"
    stopped = train(tmp_path / "run", at="micro_batch", count=10)
    assert stopped.checkpoints == ["step_00000002", "step_00000004"]
    full = train(tmp_path / "run", resume=True, limit=weights.stat().st_size + 1000)
    assert full.code == 1
    assert "Traceback" not in full.errors
    line = full.errors.splitlines()[-1]
    assert "optimizer.safetensors: File too large; the newest checkpoint is step_00000004" in line
    assert full.summary["status"] == "failed"
    assert full.checkpoints == ["step_00000002", "step_00000004"]
    done = train(tmp_path / "run", resume=True)
    assert done.code == 0, done.errors
    assert done.series() == undisturbed.series()


def test_a_finished_run_says_so_and_can_be_prolonged(train: Trainers, tmp_path: Path) -> None:
    short = ("schedule=wsd", "schedule.decay=0.0", "schedule.warmup=0.0")
    wall_s = train(tmp_path / "run", "trainer.max_steps=3", *short).summary["wall_s"]
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    again = train(tmp_path / "run", resume=True)
    assert again.code == 0
    assert "is finished after 3 steps: nothing to train" in again.errors
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    longer = train(tmp_path / "run", "trainer.max_steps=5", resume=True)
    assert (longer.code, longer.summary["steps"]) == (0, 5)
    assert longer.summary["wall_s"] > wall_s
    whole = train(tmp_path / "whole", "trainer.max_steps=5", *short)
    assert longer.series("train/") == whole.series("train/")
    shorter = train(tmp_path / "run", "trainer.max_steps=4", resume=True)
    assert shorter.code == 0, "finished, and nothing is undone"


def test_changed_data_are_refused(train: Trainers, tmp_path: Path) -> None:
    file = train.home / "corpus" / "0.txt"
    text = file.read_text()
    train(tmp_path / "run", at="micro_batch", count=7)
    try:
        file.write_text(text.replace("line", "LINE"))
        changed = train(tmp_path / "run", resume=True)
    finally:
        file.write_text(text)
    assert changed.code == 2
    assert "the files of data=text have changed" in changed.errors.splitlines()[-1]
