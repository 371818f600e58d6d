"""Finding runs: by experiment, id or folder; in the store, on the disk, or in both."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from k3lab.config.errors import UserError
from k3lab.config.load import load
from k3lab.report import commands
from k3lab.report.collect import collect
from k3lab.report.run import run_report
from k3lab.tracking import names
from k3lab.tracking.local import write_summary
from k3lab.tracking.run import Tracker
from k3lab.tracking.store import default_uri, ensure_store
from tests.report.synthetic import write_run


def sweep(root: Path, decays: tuple[str, ...] = ("softplus", "lower_bound"), jobs: list[Any] | None = None) -> Path:
    folder = root / "lab" / "sweep-20260101-120000-aaaaaa"
    for i, decay in enumerate(decays):
        run = write_run(folder / f"{i:03d}-bbbbbb", [f"decay={decay}"])
        (run / "job.json").write_text(json.dumps({"label": f"decay={decay}", "overrides": [f"decay={decay}"]}))
    overrides = ["name=lab", f"decay={','.join(decays)}"]
    write_summary(folder, {"kind": "sweep", "status": "finished", "overrides": overrides, "jobs": jobs or []})
    return folder


def test_by_experiment_folder_run_folder_and_name(tmp_path: Path) -> None:
    folder = sweep(tmp_path)
    alone = write_run(tmp_path / "lab" / "20260101-130000-cccccc", ["decay=none"])
    assert len(collect(["lab"], tmp_path).runs) == 3
    assert len(collect([str(folder)], tmp_path).runs) == 2
    assert [r.folder for r in collect([str(alone)], tmp_path).runs] == [alone]
    assert len(collect([alone.name, folder.name], tmp_path).runs) == 3
    assert len(collect(["lab", str(alone)], tmp_path).runs) == 3  # each once
    assert collect([str(alone)], tmp_path).title == "lab"


def test_commands_of_sweeps_jobs_and_runs_without_any(tmp_path: Path) -> None:
    folder = sweep(tmp_path)
    assert collect(["lab"], tmp_path).commands() == ["k3lab train -m name=lab decay=softplus,lower_bound"]
    assert collect([str(folder / "000-bbbbbb")], tmp_path).commands() == ["k3lab train decay=softplus"]
    alone = write_run(tmp_path / "lab" / "x", ["decay=softplus", "mixer=kda", "optim.lr=0.01", "seed=3"], steps=16)
    found = collect([str(alone)], tmp_path)
    assert found.commands() == []
    command = commands.reconstruct(found.runs[0])
    assert command == ("k3lab train decay=softplus 'mixer=[kda]' seed=3 name=lab optim.lr=0.01 trainer.max_steps=16"), (
        "the shortest command that makes this configuration"
    )
    again = load([word.strip("'") for word in command.split()[2:]])
    assert again.fingerprint() == found.runs[0].summary["fingerprint"]
    found.runs[0].config["decay"] = "of_another_version"
    assert commands.reconstruct(found.runs[0]) is None


def test_jobs_that_never_began_are_named(tmp_path: Path) -> None:
    jobs = [
        {"label": "decay=none", "status": "waiting", "folder": "002-x", "error": None},
        {"label": "decay=scalar", "status": "failed", "folder": "003-x", "error": "the job could not be started"},
    ]
    found = collect(["lab"], sweep(tmp_path, jobs=jobs).parents[1])
    assert [(a.label, a.status, a.error) for a in found.absent] == [
        ("decay=none", "waiting", ""),
        ("decay=scalar", "failed", "the job could not be started"),
    ]


def test_nothing_to_report_is_one_line_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no runs"):
        collect(["lab"], tmp_path / "nowhere")
    write_run(tmp_path / "techniques" / "a")
    with pytest.raises(UserError, match=r"did you mean 'techniques'.*experiments in .*: techniques"):
        collect(["technique"], tmp_path)
    with pytest.raises(UserError, match="name an experiment"):
        collect([], tmp_path)
    with pytest.raises(UserError, match="there is no file"):
        collect(["techniques"], tmp_path, f"sqlite:///{tmp_path}/other.db")
    assert not list(tmp_path.glob("*.db")), "a report creates no store"


def test_damaged_files_do_not_hide_the_rest(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "lab" / "a")
    (folder / "summary.json").write_text("{")
    with (folder / "metrics.jsonl").open("a") as out:
        out.write('{"step": 41, "time": 1')
    write_run(tmp_path / "lab" / "b", ["decay=softplus"])
    (tmp_path / "lab" / "c").mkdir()
    (tmp_path / "lab" / "c" / "summary.json").write_text(json.dumps({"status": "failed", "error": "no data"}))
    found = collect(["lab"], tmp_path)
    assert [(r.status, r.steps) for r in found.runs] == [("running", 40), ("finished", 40)]
    assert [(a.label, a.error) for a in found.absent] == [("lab/c", "no data")]


def test_through_a_real_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs of the real tracker; then their folders vanish, then one of them is deleted in MLflow."""
    losses = {"softplus": 1.5, "lower_bound": 1.4}
    trackers = []
    for i, (decay, final) in enumerate(losses.items()):
        config = load([f"decay={decay}", "name=lab", f"paths.output={tmp_path}", "trainer.max_steps=4"])
        trackers.append((Tracker.open(replace(config, seed=7), tmp_path / "lab" / f"run-{i}"), final))
    for tracker, final in trackers:
        for step in range(1, 5):
            tracker.log({names.TRAIN_LOSS: final + 1 / step, names.VAL_LOSS: final + 1 / step}, step)
        tracker.log({names.depth(names.DEPTH_OUTPUT_RMS, 0): 0.5}, 4)
        summary = {"steps": 4, "data": "feed", "wall_s": 1.0, "flops_per_token": 5e6, "run_id": tracker.run_id}
        tracker.finish("finished", summary)
    both = collect(["lab"], tmp_path)
    assert [r.folder is not None for r in both.runs] == [True, True]
    assert both.source.startswith("Read from the MLflow store sqlite:///")
    assert all(r.series for r in both.runs)  # they are read on first use
    shutil.rmtree(tmp_path / "lab")

    stored = collect(["lab"], tmp_path)
    assert [r.folder for r in stored.runs] == [None, None]
    for one, other in zip(both.runs, stored.runs, strict=True):
        assert one.id == other.id
        assert one.config == other.config
        assert other.status == "finished"
        assert one.value(names.VAL_LOSS) == other.value(names.VAL_LOSS)
        assert {k: v.values.tolist() for k, v in one.series.items()} == {
            k: v.values.tolist() for k, v in other.series.items()
        }
        assert other.fact("flops_per_token") == 5e6
        assert other.environment["python"]
        assert other.command == one.command
    assert run_report(["lab"], tmp_path, metric=names.VAL_LOSS) == 0
    assert "decay=lower_bound" in capsys.readouterr().out
    assert len(collect([stored.runs[0].id], tmp_path).runs) == 1
    assert len(collect([stored.runs[0].id[:12]], tmp_path).runs) == 1

    ensure_store(default_uri(tmp_path)).delete_run(stored.runs[1].id)
    left = collect(["lab"], tmp_path)
    assert [r.id for r in left.runs] == [stored.runs[0].id]
    assert "1 runs that were deleted" in left.notes[0]
