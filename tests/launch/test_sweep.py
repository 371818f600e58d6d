"""The loop of a sweep, with jobs that are functions."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from k3lab.config.errors import UserError
from k3lab.launch.job import Job
from k3lab.launch.sweep import run_sweep
from k3lab.tracking.local import MetricsFile, read_metrics, read_summary, write_summary


def swept(capsys: pytest.CaptureFixture[str]) -> tuple[Path, dict[str, Any]]:
    folder = Path(capsys.readouterr().out.splitlines()[-1])
    summary = read_summary(folder)
    assert summary is not None
    return folder, summary


def test_each_job_has_its_folder_and_the_sweep_its_summary(
    calls: Any, base: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "SLURM_PROCID"):
        monkeypatch.setenv(name, "3")
    assert run_sweep([*base, "decay=softplus,scalar", "router=topk,quantile", "launch.jobs=3"]) == 0
    folder, summary = swept(capsys)
    launcher = calls.made[0]
    assert [j.label for j in launcher.jobs] == [
        f"decay={d} router={r}" for d in ("softplus", "scalar") for r in ("topk", "quantile")
    ]
    assert len({j.folder for j in launcher.jobs}) == 4
    for job, record in zip(launcher.jobs, summary["jobs"], strict=True):
        assert Path(job.folder).is_absolute()
        assert Path(job.folder) == folder / record["folder"]
        assert Job.read(Path(job.folder) / "job.json") == job
        assert job.config().decay.name == job.overrides[-2].removeprefix("decay=")
        assert record["status"] == "finished"
        assert record["metrics"] == {"train/loss": 1.0 + job.index}
    for environment in launcher.environments:
        assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "SLURM_PROCID"} & set(environment)
        assert not [name for name in environment if name.startswith("TORCHELASTIC")]
        assert "PATH" in environment
    assert summary["status"] == "finished"
    assert summary["kind"] == "sweep"


def test_all_mistakes_of_a_sweep_come_at_once_and_nothing_is_written(
    calls: Any, base: list[str], tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        run_sweep([*base, "ffn.experts=4,8,1", "ffn.top_k=2,4"])
    text = str(error.value)
    assert text.startswith("3 of 6 jobs are refused: ")
    assert "(ffn.experts=4 ffn.top_k=4)" in text
    assert "ffn.experts=1 " in text
    with pytest.raises(UserError, match=r"^decay=sofplus: .*did you mean 'softplus'"):
        run_sweep([*base, "decay=sofplus", "router=topk,quantile"])
    assert not calls.made
    assert not (tmp_path / "runs").exists()


def test_a_failing_job_is_reported_and_stops_no_other(
    calls: Any, base: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def behave(job: Job, config: Any) -> int:
        folder = Path(job.folder)
        if job.index == 0:
            (folder / "log.txt").write_text("Traceback ...\nk3lab: data.path=x: no such file\n\n")
            return 2  # before it wrote anything
        if job.index == 1:
            file = MetricsFile(folder)
            file.append({"train/loss": 3.0}, 1, 0.0)
            file.append({"train/loss": 2.0}, 2, 0.0)
            file.close()
            write_summary(folder, {"status": "running", "run_id": None, "steps": 0, "tokens": 7})
            return -9
        if job.index == 2:
            write_summary(folder, {"status": "failed", "steps": 1, "error": "non-finite loss at step 2", "metrics": {}})
            return 1
        return int(calls.train(job, config))

    calls.behave = behave
    assert run_sweep([*base, "seed=range(0,4)"]) == 1
    captured = capsys.readouterr()
    folder = Path(captured.out.splitlines()[-1])
    summary = read_summary(folder)
    assert summary is not None
    assert summary["status"] == "failed"
    early, killed, failed, fine = summary["jobs"]
    assert [j["status"] for j in summary["jobs"]] == ["failed", "failed", "failed", "finished"]
    assert early["error"] == "ended with exit code 2: data.path=x: no such file"
    assert killed["error"].startswith("killed by SIGKILL")
    assert killed["steps"] == 2
    assert failed["error"] == "non-finite loss at step 2"
    assert fine["exit_code"] == 0
    for line in (early["error"], failed["error"], "[4/4] seed=3: finished"):
        assert line in captured.err
    for job in (early, killed):
        own = read_summary(folder / job["folder"])
        assert own is not None
        assert own["status"] == "failed"
        assert own["error"] == job["error"]
    assert read_metrics(folder / killed["folder"]) == {"train/loss": {1: 3.0, 2: 2.0}}, "its metrics were lost"


def test_a_signal_reaches_the_jobs_and_starts_no_more(
    calls: Any, base: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def behave(job: Job, config: Any) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        write_summary(Path(job.folder), {"status": "interrupted", "steps": 1, "metrics": {}})
        return 143

    calls.behave = behave
    before = signal.getsignal(signal.SIGTERM)
    assert run_sweep([*base, "seed=1,2,3"]) == 143
    _, summary = swept(capsys)
    assert calls.made[0].signals == [signal.SIGTERM]
    assert summary["status"] == "interrupted"
    assert [j["status"] for j in summary["jobs"]] == ["interrupted", "waiting", "waiting"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_resume_auto_does_what_is_left_of_the_newest_unfinished_sweep(
    calls: Any, base: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls.behave = lambda j, c: -9 if j.index == 1 else calls.train(j, c)
    arms = [*base, "seed=1,2,3"]
    assert run_sweep(arms) == 1
    first, before = swept(capsys)
    calls.behave = calls.train
    assert run_sweep([*base, "seed=1,2", "resume=auto"]) == 0, "other jobs are another sweep"
    other, _ = swept(capsys)
    assert other != first
    assert run_sweep([*arms, "resume=auto"]) == 0
    folder, after = swept(capsys)
    assert folder == first
    (job,) = calls.made[-1].jobs
    assert (job.index, job.resume) == (1, True)
    assert [j["folder"] for j in after["jobs"]] == [j["folder"] for j in before["jobs"]]
    assert [j["status"] for j in after["jobs"]] == ["finished"] * 3
    assert run_sweep([*arms, "resume=auto"]) == 0, "all done: a new sweep"
    assert swept(capsys)[0] != first
    with pytest.raises(UserError, match="names one run"):
        run_sweep([*arms, f"resume={first}"])


def test_a_password_is_in_no_file_and_reaches_the_jobs(
    calls: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from k3lab.tracking import run

    seen: list[str] = []

    def behave(job: Job, config: Any) -> int:
        seen.append((Path(job.folder) / "job.json").read_text())
        return int(calls.train(job, config))

    calls.behave = behave
    monkeypatch.setattr(run, "Link", lambda *_: None)  # there is no such server
    uri = "http://me:hunter2@127.0.0.1:9"
    assert run_sweep([f"paths.output={tmp_path}/runs", f"tracking.uri={uri}", "seed=1,2"]) == 0
    assert len(seen) == 2
    assert "me:***@127.0.0.1:9" in json.loads(seen[0])["overrides"][1]
    assert all(environment["MLFLOW_TRACKING_URI"] == uri for environment in calls.made[0].environments)
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and b"hunter2" in p.read_bytes()]


def test_an_unwritable_output_is_one_line(calls: Any, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UserError, match=r"paths\.output: cannot write to"):
        run_sweep([f"paths.output={tmp_path}/runs", "tracking=none", "seed=1,2"])


def test_an_experiment_brings_its_arms_and_the_command_line_wins(
    calls: Any, base: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arms = "sweep.arms=['decay=softplus,scalar','router=topk,quantile','optim.lr=1e-3']"
    assert run_sweep([*base, arms, "router=sign_bias", "sweep.seeds=2"]) == 0
    _, summary = swept(capsys)
    assert [j["label"] for j in summary["jobs"]] == [
        f"decay={d} seed={s}" for d in ("softplus", "scalar") for s in (0, 1)
    ]
    assert all("optim.lr=1e-3" in j["overrides"] for j in summary["jobs"])
    assert all("router=sign_bias" in j["overrides"] for j in summary["jobs"])
    with pytest.raises(UserError, match="one for the whole sweep"):
        run_sweep([*base, "sweep.arms=['launch.jobs=1,2']"])


def test_a_killed_grid_goes_on_with_the_missing_arms(
    calls: Any, base: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    calls.behave = lambda j, c: -9 if j.index == 2 else calls.train(j, c)
    arms = [*base, "decay=softplus,scalar", "sweep.seeds=2"]
    assert run_sweep(arms) == 1
    folder, summary = swept(capsys)
    summary["status"] = summary["jobs"][1]["status"] = "running"  # as a kill −9 leaves it, job 1 about to end
    summary["jobs"][3] |= {"status": "waiting", "metrics": {}, "steps": 0}
    write_summary(folder, summary)
    shutil.rmtree(folder / summary["jobs"][3]["folder"])
    calls.behave = calls.train
    assert run_sweep([*arms, "resume=auto"]) == 0
    again, after = swept(capsys)
    assert again == folder
    assert [(j.index, j.resume) for j in calls.made[-1].jobs] == [(2, True), (3, False)]
    assert [j["status"] for j in after["jobs"]] == ["finished"] * 4
    assert [j["arm"] for j in after["jobs"]] == ["decay=softplus"] * 2 + ["decay=scalar"] * 2
