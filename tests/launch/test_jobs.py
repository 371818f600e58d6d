"""Sweeps of real trainings in real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from k3lab.tracking.local import read_metrics, read_summary
from k3lab.tracking.store import default_uri, ensure_store

TINY = [
    *("model.hidden_size=32", "model.heads=2", "model.layers=2", "ffn.experts=4", "ffn.top_k=2", "diagnostics=cheap"),
    "diagnostics.figures=false",
    *("data.batch_size=2", "data.seq_len=32", "trainer.val_batches=1", "trainer.accelerator=cpu", "name=lab"),
]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for i in range(20):
        (folder / f"{i}.txt").write_text(f"file {i} of a corpus that is small and dull. " * 40)
    return folder


def start(output: Path, *overrides: str) -> subprocess.Popen[str]:
    environment = os.environ | {"RANK": "7", "WORLD_SIZE": "8", "LOCAL_RANK": "7", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "k3lab", "train", "-m", f"paths.output={output}", *TINY, *overrides]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_jobs_train_and_one_that_cannot_start_is_recorded(tmp_path: Path, corpus: Path) -> None:
    output = tmp_path / "my runs"
    sweep = start(output, "trainer.max_steps=2", "launch.jobs=2", f"data.path={corpus},{tmp_path}/absent", "seed=3")
    out, err = sweep.communicate(timeout=240)
    assert sweep.returncode == 1, err
    folder = Path(out.splitlines()[-1])
    summary = read_summary(folder)
    assert summary is not None
    good, bad = summary["jobs"]
    assert (good["status"], bad["status"]) == ("finished", "failed"), err
    assert "absent" in bad["error"]
    assert bad["error"] in err
    assert "Traceback" not in err
    client = ensure_store(default_uri(output))
    parent, first, second = (client.get_run(s["run_id"]) for s in (summary, good, bad))
    assert [r.info.status for r in (parent, first, second)] == ["FAILED", "FINISHED", "FAILED"]
    for child in (first, second):
        assert child.data.tags["mlflow.parentRunId"] == summary["run_id"]
        assert child.data.params["seed"] == "3"
        artifacts = {f.path for f in client.list_artifacts(child.info.run_id)}
        assert artifacts >= {"config.yaml", "summary.json"}
    assert parent.data.params["overrides"].endswith("seed=3")
    assert second.data.params["data.path"] == f"{tmp_path}/absent"
    assert set(read_metrics(folder / good["folder"])["train/loss"]) == {1, 2}
    assert first.info.run_name == f"data.path={corpus}"
    assert sorted(p.name for p in output.iterdir()) == ["artifacts", "lab", "mlflow.db", "mlflow.db.lock"]


@pytest.mark.slow
def test_an_interrupted_sweep_saves_and_goes_on(tmp_path: Path, corpus: Path) -> None:
    output = tmp_path / "runs"
    arms = ["trainer.max_steps=60", f"data.path={corpus}", "seed=1,2", "tracking=none", "trainer.val_every=null"]
    sweep = start(output, *arms)
    deadline = time.monotonic() + 120
    while not any(_steps(p) >= 3 for p in output.glob("lab/sweep-*/0*")):
        assert sweep.poll() is None, sweep.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    sweep.send_signal(signal.SIGINT)
    out, err = sweep.communicate(timeout=120)
    folder = Path(out.splitlines()[-1])
    before = json.loads((folder / "summary.json").read_text())
    if before["jobs"][0]["status"] == "interrupted":  # else the machine was too fast
        assert sweep.returncode == 130, err
        assert list((folder / before["jobs"][0]["folder"] / "checkpoints").glob("step_*"))
        assert before["jobs"][1]["status"] == "waiting"
    again = start(output, *arms, "resume=auto")
    out, err = again.communicate(timeout=240)
    assert again.returncode == 0, err
    assert Path(out.splitlines()[-1]) == folder
    for job in read_summary(folder)["jobs"]:  # type: ignore[index]
        assert job["status"] == "finished"
        assert sorted(read_metrics(folder / job["folder"])["train/loss"]) == list(range(1, 61))


def _steps(folder: Path) -> int:
    found: dict[str, Any] = read_metrics(folder)
    return max(found.get("train/loss", {0: 0}))
