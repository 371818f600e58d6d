"""Searches: killed and continued, failing, pruning, in parallel."""

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

from k3lab.config.errors import UserError
from k3lab.launch.job import Job
from k3lab.launch.sweep import run_sweep
from k3lab.tracking.local import MetricsFile, read_summary, write_summary

optuna = pytest.importorskip("optuna")

SPACE = ["sweep=optuna", "optim.lr=tag(log,interval(1e-4,1))", "decay=none,softplus", "trainer.max_steps=40"]
VALIDATIONS = "trainer.val_every=10"


def start(output: Path, objective: dict[str, Any], *overrides: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).with_name("objective.py")), *SPACE, VALIDATIONS, *overrides]
    environment = os.environ | {"OBJECTIVE": json.dumps(objective), "OMP_NUM_THREADS": "1"}
    command += [f"paths.output={output}", "tracking=none"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str], code: int = 0) -> tuple[Path, dict[str, Any], str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    folder = Path(out.splitlines()[-1])
    return folder, read_summary(folder) or {}, err


def states(folder: Path) -> list[str]:
    study = optuna.load_study(study_name=None, storage=f"sqlite:///{folder}/optuna.db")
    return [t.state.name for t in study.trials]


@pytest.mark.slow
def test_a_search_killed_after_five_of_twelve_trials_ends_with_twelve(tmp_path: Path) -> None:
    objective = {"loss": {"2": None, "7": "crash"}, "pause": 0.02}
    search = start(tmp_path, objective, "sweep.trials=12", "sweep.pruner=none")
    deadline = time.monotonic() + 60
    while True:
        folder = next(tmp_path.glob("train/sweep-*"), tmp_path)
        jobs = (read_summary(folder) or {}).get("jobs", [])
        if sum(j["status"] in ("finished", "failed") for j in jobs) >= 5:
            break
        assert search.poll() is None, search.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    search.send_signal(signal.SIGKILL)
    search.wait()
    before = read_summary(folder)
    assert before is not None
    assert before["status"] == "running"
    assert len(states(folder)) < 12
    again, summary, err = ended(start(tmp_path, objective, "sweep.trials=12", "sweep.pruner=none", "resume=auto"))
    assert again == folder
    expected = ["COMPLETE"] * 12
    expected[2] = expected[7] = "FAIL"
    assert states(folder) == expected
    assert summary["status"] == "finished"
    assert [j["index"] for j in summary["jobs"]] == list(range(12))
    assert [j["status"] == "failed" for j in summary["jobs"]] == [i == 7 for i in range(12)]
    for old, new in zip(before["jobs"], summary["jobs"], strict=False):
        assert (old["folder"], old["overrides"]) == (new["folder"], new["overrides"])
    for job in summary["jobs"]:
        spans = (folder / job["folder"] / "spans.txt").read_text()
        assert spans.count("\n") <= 1, "what had ended was run again"
    assert summary["search"]["trials"] == {"complete": 10, "pruned": 0, "failed": 2, "running": 0}
    best = summary["search"]["best"]
    losses = {j["index"]: j["metrics"]["val/loss"] for j in summary["jobs"] if j["index"] not in (2, 7)}
    assert best["value"] == min(losses.values()) == losses[best["jobs"][0]]
    assert best["overrides"] == summary["jobs"][best["trial"]]["overrides"][-2:]
    last = err.splitlines()[-1]
    assert last.startswith(f"k3lab: best of 10 complete, 2 failed: trial {best['trial']}, val/loss ")
    assert "Traceback" not in err


@pytest.mark.slow
def test_parallel_jobs_and_one_that_is_pruned(tmp_path: Path) -> None:
    losses = {str(i): 1 - i / 10 for i in range(7)} | {"3": 5.0, "5": 6.0}
    how = ["launch.jobs=2", "sweep.trials=7", "sweep.startup=2", "sweep.warmup=20", "trainer.max_steps=120"]
    folder, summary, err = ended(start(tmp_path, {"loss": losses, "pause": 0.15}, *how))
    assert [j["status"] for j in summary["jobs"]] == [*["finished"] * 3, "pruned", "finished", "pruned", "finished"]
    assert [s == "PRUNED" for s in states(folder)] == [i in (3, 5) for i in range(7)]
    assert summary["search"]["best"]["trial"] == 6
    assert "trial 6" in err.splitlines()[-1]
    for index in (3, 5):
        job = summary["jobs"][index]
        assert 20 <= job["steps"] < 120
        assert job["error"].startswith("val/loss ")
        assert job["exit_code"] == 128 + signal.SIGTERM, "it was not given the time to save"
        own = read_summary(folder / job["folder"])
        assert own is not None
        assert (own["status"], own["error"], own["steps"]) == ("pruned", job["error"], job["steps"])
        assert f": pruned after {job['wall_s']:.0f} s: {job['error']}" in err
    spans = [(folder / j["folder"] / "spans.txt").read_text().split() for j in summary["jobs"]]
    assert float(spans[1][0]) < float(spans[0][1]), "the first two did not run at the same time"
    assert float(spans[2][0]) >= min(float(spans[0][1]), float(spans[1][1])), "three at a time"


def swept(capsys: pytest.CaptureFixture[str]) -> tuple[Path, dict[str, Any]]:
    folder = Path(capsys.readouterr().out.splitlines()[-1])
    return folder, read_summary(folder) or {}


def leave(job: Job, config: Any, loss: float | None) -> int:
    folder = Path(job.folder)
    metrics = {"val/loss": loss, "val/bits_per_byte": 0.5, "balance/layer_03/cv": 0.25}
    file = MetricsFile(folder)
    file.append({"val/loss": loss or 9.0}, config.trainer.max_steps, 0.0)
    file.close()
    write_summary(folder, {"status": "finished", "run_id": None, "steps": 40, "metrics": metrics})
    return 0


def test_more_trials_and_seeds(calls: Any, base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def by_seed(job: Job, config: Any) -> int:
        assert config.seed == 4 + job.index % 2
        assert config.sweep.seeds == 2
        return leave(job, config, 10.0 - job.index // 2 + config.seed)

    calls.behave = by_seed
    search = [*base, *SPACE, "seed=4", "sweep.seeds=2"]
    assert run_sweep([*search, "sweep.trials=2"]) == 0
    folder, summary = swept(capsys)
    assert summary["search"]["best"] | {"overrides": []} == {"trial": 1, "value": 13.5, "overrides": [], "jobs": [2, 3]}
    assert run_sweep([*search, "sweep.trials=3", "resume=auto"]) == 0
    again, summary = swept(capsys)
    assert again == folder
    assert [j.index for j in calls.made[-1].jobs] == [4, 5]
    assert [j["status"] for j in summary["jobs"]] == ["finished"] * 6
    assert summary["jobs"][4]["arm"] == summary["jobs"][5]["arm"]
    assert run_sweep([*search, "sweep.trials=3", "resume=auto"]) == 0, "all done: a new search"
    assert swept(capsys)[0] != folder


def test_what_cannot_be_built_is_a_failed_trial_and_all_of_them_a_failed_search(
    calls: Any, base: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    calls.behave = lambda job, config: leave(job, config, None if config.ffn.experts == 4 else 1.0)
    space = [*base, "sweep=optuna", "ffn.experts=4,6", "ffn.top_k=2,5", "sweep.sampler=random", "sweep.seed=2"]
    code = run_sweep([*space, "sweep.trials=4"])
    _, summary = swept(capsys)
    refused = [j for j in summary["jobs"] if j["overrides"][-2:] == ["ffn.experts=4", "ffn.top_k=5"]]
    assert refused, "the seed no longer draws it"
    assert all(j["status"] == "failed" and "ffn.top_k=5" in j["error"] for j in refused)
    assert summary["search"]["trials"]["failed"] >= len(refused)
    assert code == (0 if summary["search"]["trials"]["complete"] else 1)
    calls.behave = lambda job, config: leave(job, config, None)
    assert run_sweep([*base, *SPACE, "sweep.trials=2"]) == 1
    assert swept(capsys)[1]["status"] == "failed"


def test_metrics_that_are_not(calls: Any, base: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"sweep\.metric=val/los: no such metric; did you mean 'val/loss'"):
        run_sweep([*base, *SPACE, "sweep.metric=val/los"])
    assert not calls.made
    calls.behave = lambda job, config: leave(job, config, 1.0)
    with pytest.raises(UserError, match="did you mean 'balance/layer_03/cv'"):
        run_sweep([*base, *SPACE, "sweep.metric=balance/layer_3/cv"])
    assert len(calls.made[0].jobs) == 1


def test_a_signal_leaves_trials_to_go_on_with(calls: Any, base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(job: Job, config: Any) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        write_summary(Path(job.folder), {"status": "interrupted", "steps": 10, "metrics": {}})
        return 143

    calls.behave = interrupted
    assert run_sweep([*base, *SPACE, "sweep.trials=2"]) == 143
    folder, before = swept(capsys)
    assert before["search"]["trials"]["running"] == 1
    calls.behave = lambda job, config: leave(job, config, 1.0)
    assert run_sweep([*base, *SPACE, "sweep.trials=2", "resume=auto"]) == 0
    again, after = swept(capsys)
    assert again == folder
    first, second = calls.made[-1].jobs
    assert (first.index, first.resume, first.folder) == (0, True, str(folder / before["jobs"][0]["folder"]))
    assert (second.index, second.resume) == (1, False)
    assert states(folder) == ["COMPLETE"] * 2
    assert after["jobs"][0]["overrides"] == before["jobs"][0]["overrides"]
