"""A tracker on a real MLflow store, with its courier process."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from k3lab.config.errors import UserError
from k3lab.tracking import link
from k3lab.tracking.local import MetricsFile, read_metrics
from k3lab.tracking.mlflow import MLflowSettings
from k3lab.tracking.none import NoneSettings
from k3lab.tracking.run import Tracker, flatten
from k3lab.tracking.system import SystemMetrics

HERE = Path(__file__).parent


def history(client: Any, run_id: str, name: str) -> list[tuple[int, float]]:
    return sorted((m.step, m.value) for m in client.get_metric_history(run_id, name))


def test_the_life_of_a_run_and_of_its_continuation(tmp_path: Path, make_config: Any, store: Any) -> None:
    parent = Tracker.open(make_config(name="lab"), tmp_path / "lab" / "sweep-1")
    folder = tmp_path / "lab" / "run-1"
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps({"label": "decay=lower_bound", "overrides": ["decay=lower_bound"]}))
    config = make_config(name="lab", extra={"long": "x" * 7000, "just": "y" * 6000, "mixer": {"kda": {"name": "kda"}}})
    tracker = Tracker.open(config, folder, parent_run_id=parent.run_id)
    run_id = tracker.run_id
    assert run_id
    for step in range(1, 8):
        tracker.log({"train/loss": 1 / step, "odd": math.nan if step == 2 else math.inf}, step)
    tracker.flush()
    client = store()
    assert history(client, run_id, "train/loss") == [(s, 1 / s) for s in range(1, 8)], "flush came back too early"
    assert client.get_run(run_id).info.status == "RUNNING"
    tracker.finish("interrupted", {"status": "?", "steps": 7})
    run = client.get_run(run_id)
    assert run.info.status == "KILLED"
    assert run.info.run_name == "decay=lower_bound"
    assert run.data.tags["mlflow.parentRunId"] == parent.run_id
    assert run.data.tags["k3lab.command"] == "k3lab train decay=lower_bound"
    assert run.data.tags["environment.python"]
    assert run.data.params["decay"] == "lower_bound"
    assert run.data.params["decay.bound"] == "-5.0"
    assert run.data.params["just"] == "y" * 6000
    assert "sha256" in run.data.params["long"]
    assert {f.path for f in client.list_artifacts(run_id)} == {"config.yaml", "summary.json"}
    assert math.isnan(dict(history(client, run_id, "odd"))[2])

    # Continued from step 4: steps 5 to 7 are done again.
    tracker = Tracker.open(make_config(name="lab"), folder, run_id=run_id, start_step=4)
    assert tracker.run_id == run_id
    for step in range(5, 10):
        tracker.log({"train/loss": 1 / step, "late": 1.0}, step)
    tracker.finish("finished", {"steps": 9})
    assert history(client, run_id, "train/loss") == [(s, 1 / s) for s in range(1, 10)]
    assert history(client, run_id, "late") == [(s, 1.0) for s in range(5, 10)]
    assert client.get_run(run_id).info.status == "FINISHED"
    parent.finish("failed", {})
    assert client.get_run(parent.run_id).info.status == "FAILED"
    assert not list(Path.cwd().glob("mlruns"))
    assert json.loads((folder / "summary.json").read_text())["status"] == "finished"


def test_a_killed_trainer_loses_nothing_and_is_found_again_by_its_folder(
    tmp_path: Path, make_config: Any, store: Any
) -> None:
    script = f"""
import os, signal, sys
sys.path.insert(0, {str(HERE)!r})
from types import SimpleNamespace
from pathlib import Path
from conftest import FakeConfig
from k3lab.tracking.run import Tracker
tracker = Tracker.open(FakeConfig(SimpleNamespace(output={str(tmp_path)!r})), Path({str(tmp_path)!r}) / "train" / "r")
for step in range(1, 2001):
    tracker.log({{"train/loss": step / 7}}, step)
print(tracker.run_id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    run_id = done.stdout.strip()
    # At once, and without the id: nothing but the folder tells which run it was.
    tracker = Tracker.open(make_config(), tmp_path / "train" / "r", start_step=1500)
    assert tracker.run_id == run_id
    for step in range(1501, 2101):
        tracker.log({"train/loss": step / 7}, step)
    tracker.finish("finished")
    client = store()
    assert history(client, run_id, "train/loss") == [(s, s / 7) for s in range(1, 2101)]
    assert client.get_run(run_id).info.status == "FINISHED"


def test_a_refused_connection_ends_within_thirty_seconds(
    tmp_path: Path, make_config: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.monotonic()
    config = make_config(MLflowSettings(uri=f"http://me:hunter2@127.0.0.1:{port}"))
    tracker = Tracker.open(config, tmp_path / "train" / "r")
    opened = time.monotonic() - began
    assert tracker.run_id is None
    waited = time.monotonic() - began
    for step in range(5):
        tracker.log({"train/loss": 1.0}, step)
    tracker.flush()
    tracker.finish("finished", {"steps": 5})
    whole = time.monotonic() - began
    assert opened < 3, "the start of a run waits for the server"
    assert waited < 30
    assert whole < 45
    out, err = capfd.readouterr()
    assert err.count("\n") == 1, err
    assert str(tmp_path / "train" / "r" / "metrics.jsonl") in err
    assert "hunter2" not in out + err
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and b"hunter2" in p.read_bytes()]
    assert len((tmp_path / "train" / "r" / "metrics.jsonl").read_text().splitlines()) == 5


def test_a_server_that_never_answers_is_waited_for_only_so_long(
    tmp_path: Path, make_config: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, seconds in {"OPEN_S": 1.0, "FLUSH_S": 0.5, "FINISH_DOWN_S": 0.5}.items():
        monkeypatch.setattr(link, name, seconds)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(16)  # accepts, and says nothing
        config = make_config(MLflowSettings(uri=f"http://127.0.0.1:{silent.getsockname()[1]}"))
        tracker = Tracker.open(config, tmp_path / "train" / "r")
        began = time.monotonic()
        assert tracker.run_id is None
        tracker.log({"train/loss": 1.0}, 1)
        tracker.flush()
        tracker.flush()
        tracker.finish("finished", {"steps": 1})
        assert time.monotonic() - began < 6
    assert capfd.readouterr().err.count("metrics.jsonl") == 1


def test_a_courier_that_dies_is_told_and_survived(
    tmp_path: Path, make_config: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    tracker = Tracker.open(make_config(), tmp_path / "train" / "r")
    assert tracker._link is not None
    os.kill(tracker._link._process.pid, signal.SIGKILL)
    assert tracker.run_id is None
    tracker.log({"train/loss": 1.0}, 1)
    tracker.flush()
    tracker.artifact(tmp_path)
    tracker.finish("failed", {})
    assert capfd.readouterr().err.count("metrics.jsonl") == 1


def test_a_slow_store_gets_the_rest_after_the_training_has_ended(
    tmp_path: Path, make_config: Any, store: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(link, "FINISH_S", 0.01)
    tracker = Tracker.open(make_config(), tmp_path / "train" / "r")
    run_id = tracker.run_id
    assert run_id
    for step in range(5):
        tracker.log({f"m{i}": 1.0 for i in range(1000)}, step)
    tracker.finish("finished")
    assert "still on their way" in capfd.readouterr().err
    assert tracker._link is not None
    assert tracker._link._process.wait(60) == 0
    client = store()
    assert len(history(client, run_id, "m999")) == 5
    assert client.get_run(run_id).info.status == "FINISHED"


def test_a_deleted_experiment_is_the_users_to_mend(tmp_path: Path, make_config: Any, store: Any) -> None:
    client = store()
    client.delete_experiment(client.create_experiment("gone"))
    tracker = Tracker.open(make_config(MLflowSettings(experiment="gone")), tmp_path / "gone" / "r")
    with pytest.raises(UserError, match=r"experiment=gone.*deleted"):
        _ = tracker.run_id
    tracker.finish("failed", {})


def test_without_a_server_there_are_the_local_files(tmp_path: Path, make_config: Any) -> None:
    tracker = Tracker.open(make_config(NoneSettings()), tmp_path / "train" / "r")
    assert tracker.run_id is None
    tracker.log({"train/loss": 2.0}, 1)
    tracker.flush()
    tracker.artifact(tmp_path)
    with pytest.raises(ValueError, match="status=done"):
        tracker.finish("done")
    tracker.finish("finished", {"steps": 1})
    assert sorted(p.name for p in (tmp_path / "train" / "r").iterdir()) == [
        "config.yaml",
        "metrics.jsonl",
        "summary.json",
    ]


def test_system_metrics_are_an_option(tmp_path: Path, make_config: Any) -> None:
    assert not MLflowSettings().system_metrics
    every = SystemMetrics(tmp_path, every=1000.0)
    assert every.sample()["system/process_memory_gib"] > 0
    assert every.sample() == {}, "sampled again before its time"
    folder = tmp_path / "train" / "r"
    tracker = Tracker(folder, MetricsFile(tmp_path), None, SystemMetrics(tmp_path, 1000.0))
    tracker.log({"train/loss": 2.0}, 1)
    assert {"train/loss", "system/cpu_percent", "system/disk_free_gib"} <= set(read_metrics(tmp_path))


def test_logging_costs_the_training_little(tmp_path: Path, make_config: Any) -> None:
    tracker = Tracker.open(make_config(NoneSettings()), tmp_path / "train" / "r")
    metrics = {f"balance/layer_{i:02d}/max_vio": i / 7 for i in range(1000)}
    times = []
    for step in range(30):
        began = time.perf_counter()
        tracker.log(metrics, step)
        times.append(time.perf_counter() - began)
    tracker.finish("finished")
    assert sorted(times)[15] < 0.010, "1 ms is usual; MLflow's own client takes 100 ms"


def test_flatten() -> None:
    nested = {"seed": 1, "mixer": {"kda": {"name": "kda", "gate": None}}, "name": None, "model": {"pattern": ["kda"]}}
    assert flatten(nested) == {
        "seed": "1",
        "mixer.kda": "kda",
        "mixer.kda.gate": "null",
        "name": "null",
        "model.pattern": '["kda"]',
    }
