"""Checkpoint folders: complete or absent, verified, never unpickled."""

from __future__ import annotations

import json
import pickle
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from k3lab.training import checkpoint
from k3lab.training.checkpoint import Snapshot
from k3lab.training.foreign import CheckpointError

FILES = ("model.safetensors", "optimizer.safetensors", "rng.safetensors", "manifest.json")


def snapshot(step: int = 3) -> Snapshot:
    tied = torch.arange(6.0).view(2, 3)
    return Snapshot(
        step,
        {"embedding": tied, "head": tied, "router.pending": torch.tensor([1, 2], dtype=torch.int32)},
        {
            "state": {"embedding": {"step": torch.tensor(3.0), "exp_avg": torch.ones(2, 3)}},
            "param_groups": [{"lr": 0.1}],
        },
        {"torch": torch.get_rng_state(), "python": (3, (1, 2), None)},
        {"run_id": "abc", "latest": {"val/loss": float("nan")}, "wall_s": 1.5},
    )


def test_round_trip(tmp_path: Path) -> None:
    folder = checkpoint.write(tmp_path, snapshot(), keep=2)
    assert folder.name == "step_00000003"
    assert sorted(p.name for p in folder.iterdir()) == sorted(FILES)
    back, wanted = checkpoint.read(folder), snapshot()
    assert back.step == 3
    assert {k: v.tolist() for k, v in back.model.items()} == {k: v.tolist() for k, v in wanted.model.items()}
    assert back.model["router.pending"].dtype == torch.int32
    assert torch.equal(back.optimizer["state"]["embedding"]["exp_avg"], torch.ones(2, 3))
    assert back.rng["python"] == (3, (1, 2), None)
    assert back.state["latest"]["val/loss"] != back.state["latest"]["val/loss"]
    assert checkpoint.read(folder, parts=("model",)).optimizer is None


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_noticed(tmp_path: Path, name: str) -> None:
    folder = checkpoint.write(tmp_path, snapshot(), keep=2)
    clean = (folder / name).read_bytes()
    for position in {0, len(clean) // 3, len(clean) // 2, len(clean) - 2}:
        broken = bytearray(clean)
        broken[position] ^= 4
        (folder / name).write_bytes(broken)
        with pytest.raises(CheckpointError, match=name):
            checkpoint.read(folder)
    (folder / name).write_bytes(clean)
    checkpoint.read(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_cut_file_is_noticed(tmp_path: Path, name: str) -> None:
    folder = checkpoint.write(tmp_path, snapshot(), keep=2)
    file = folder / name
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=name):
        checkpoint.verify(folder)
    file.unlink()
    with pytest.raises(CheckpointError, match=name):
        checkpoint.verify(folder)


class Bomb:
    """Leaves a file behind if anything unpickles it."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return (Path.touch, (self.target,))


def test_pickles_are_refused_and_never_run(tmp_path: Path) -> None:
    target = tmp_path / "exploded"
    bomb = pickle.dumps(Bomb(target))
    for name in ("last.ckpt", "model.pt", "pytorch_model.bin"):
        folder = tmp_path / name.replace(".", "_") / "step_00000001"
        folder.mkdir(parents=True)
        (folder / name).write_bytes(bomb)
        with pytest.raises(CheckpointError, match=f"{name} may run code"):
            checkpoint.newest(folder.parent)
    folder = checkpoint.write(tmp_path / "own", snapshot(), keep=2)
    (folder / "model.safetensors").write_bytes(bomb)
    # An attacker can mend the checksums, so the reader of the file itself must be harmless too.
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["model.safetensors"] = checkpoint._file_hash(folder / "model.safetensors")
    manifest.pop("sha256")
    manifest["sha256"] = checkpoint._manifest_hash(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="no safetensors file"):
        checkpoint.read(folder)
    assert not target.exists()
    pickle.loads(bomb)  # the bomb works
    assert target.exists()


def test_foreign_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint of k3lab"):
        checkpoint.verify(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": "other-1"}')
    with pytest.raises(CheckpointError, match="not of the format"):
        checkpoint.verify(tmp_path)


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 20):
        checkpoint.write(tmp_path, snapshot(step), keep=2)
    assert [p.name for p in checkpoint.complete(tmp_path)] == ["step_00000020", "step_00000003"]
    assert len(list(tmp_path.iterdir())) == 2, "nothing temporary is left"


def test_newest_goes_behind_a_damaged_one(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path / "absent") == (None, [])
    for step in (1, 2):
        checkpoint.write(tmp_path, snapshot(step), keep=3)
    (tmp_path / "step_00000002" / "model.safetensors").write_bytes(b"x")
    (tmp_path / ".tmp-step_00000009").mkdir()
    folder, skipped = checkpoint.newest(tmp_path)
    assert folder == tmp_path / "step_00000001"
    assert len(skipped) == 1
    assert "step_00000002/model.safetensors is damaged" in skipped[0]
    (tmp_path / "step_00000001" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="no usable checkpoint is left"):
        checkpoint.newest(tmp_path)


def test_a_damaged_one_is_overwritten_and_does_not_outlive_good_ones(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        checkpoint.write(tmp_path, snapshot(step), keep=3)
    for step in (2, 3):
        (tmp_path / f"step_0000000{step}" / "model.safetensors").write_bytes(b"x")
    checkpoint.write(tmp_path, snapshot(2), keep=1)
    assert [p.name for p in checkpoint.complete(tmp_path)] == ["step_00000002"]
    assert checkpoint.newest(tmp_path) == (tmp_path / "step_00000002", [])


def test_a_failed_write_leaves_the_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.write(tmp_path, snapshot(1), keep=1)

    def killed(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "_sync", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.write(tmp_path, snapshot(2), keep=1)
    assert [p.name for p in tmp_path.iterdir()] == ["step_00000001"]
    checkpoint.verify(tmp_path / "step_00000001")


def test_a_full_disk_is_an_error_of_the_system(tmp_path: Path) -> None:
    """A limit on file sizes stands for the disk: the writer gets the same kind of error."""
    code = f"""
import resource, torch
from pathlib import Path
from k3lab.training import checkpoint
from k3lab.training.checkpoint import Snapshot
def save(step, size):
    snap = Snapshot(step, {{"w": torch.zeros(size)}}, {{}}, {{}}, {{}})
    checkpoint.write(Path({str(tmp_path)!r}), snap, keep=1)
save(1, 10)
resource.setrlimit(resource.RLIMIT_FSIZE, ({1 << 16}, {1 << 16}))
try:
    save(2, 100_000)
except OSError as error:
    assert checkpoint.disk_refused(error), error
    print(error.filename)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "model.safetensors" in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["step_00000001"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
