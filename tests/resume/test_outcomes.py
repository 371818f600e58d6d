"""How runs end, what they say and leave; what can be done with a finished one."""

from __future__ import annotations

import json
import signal
import sqlite3
from pathlib import Path

import pytest
import torch

from k3lab.config.errors import UserError
from k3lab.config.load import load_folder
from tests.resume.conftest import Trained, Trainers


def test_the_store_holds_each_value_once(train: Trainers, undisturbed: Trained, tmp_path: Path) -> None:
    """After two kills MLflow's series are bitwise those of an undisturbed run, under one run id."""
    run = tmp_path / "runs" / "run"
    run.parent.mkdir()
    assert train(run, "tracking=mlflow", at="micro_batch", count=9).code == -signal.SIGKILL
    assert train(run, resume=True, at="checkpoint", count=3).code == -signal.SIGKILL
    done = train(run, resume=True)
    assert done.code == 0, done.errors
    with sqlite3.connect(run.parent / "mlflow.db") as store:
        rows = store.execute("select run_uuid, key, step, value from metrics").fetchall()
        status = store.execute("select run_uuid, status from runs").fetchall()
    assert status == [(done.summary["run_id"], "FINISHED")]
    found = {(key, step): value for _, key, step, value in rows if not key.startswith(("perf/", "system/"))}
    assert len(rows) == len({(key, step) for _, key, step, _ in rows})
    assert found == undisturbed.series() == done.series()


def test_a_non_finite_loss_stops_the_run(train: Trainers, tmp_path: Path) -> None:
    done = train(tmp_path / "run", "optim.lr=1e30", "trainer.clip=null", "optim.weight_decay=0", "diagnostics=off")
    assert done.code == 1
    assert "Traceback" not in done.errors
    line = done.errors.splitlines()[-1]
    assert line.startswith("k3lab: ")
    assert str(tmp_path / "run" / "failure.json") in line
    summary, failure = done.summary, json.loads((tmp_path / "run" / "failure.json").read_text())
    assert (summary["status"], summary["error"]) == ("failed", line.removeprefix("k3lab: "))
    assert failure["step"] == summary["steps"] + 1
    assert any(layer["param_rms"] and layer["param_rms"] > 1e10 for layer in failure["layers"].values())
    assert (tmp_path / "run" / "traceback.txt").read_text().startswith("Traceback")


def test_a_folder_that_cannot_be_written(train: Trainers, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = train(tmp_path / "file" / "run")
    assert done.code == 2
    assert done.errors.splitlines()[-1].startswith("k3lab: paths.output: cannot write to ")


def test_a_refused_run_leaves_nothing(train: Trainers, tmp_path: Path) -> None:
    done = train(tmp_path / "run", "data.path=nowhere")
    assert done.code == 2
    assert not (tmp_path / "run").exists()
    if not torch.cuda.is_available():
        refused = train(tmp_path / "run", "trainer.accelerator=gpu")
        assert "no CUDA device" in refused.errors
        assert not (tmp_path / "run").exists()


def test_evaluation_gives_the_last_validation(
    train: Trainers, undisturbed: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    from k3lab.training.evaluate import evaluate

    monkeypatch.chdir(train.home)
    before = sorted(undisturbed.folder.rglob("*"))
    found = evaluate(load_folder(undisturbed.folder), undisturbed.folder)
    assert found.pop("step") == 10
    assert found == {n: v for (n, s), v in undisturbed.series("val/").items() if s == 10}
    assert sorted(undisturbed.folder.rglob("*")) == before, "nothing is written"


def test_generation(train: Trainers, undisturbed: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    from k3lab.training.evaluate import load_model
    from k3lab.training.generate import generate
    from k3lab.training.machine import prepare_source

    monkeypatch.chdir(train.home)
    folder, config = undisturbed.folder, load_folder(undisturbed.folder)
    text = generate(config, folder, "line ", max_new_tokens=12, seed=1)
    assert text.startswith("line ")
    assert generate(config, folder, "line ", max_new_tokens=12, seed=1) == text
    assert generate(config, folder, "line ", max_new_tokens=12, seed=2) != text
    # One token at a time from the caches is what the whole model says about the whole text.
    source = prepare_source(config)
    model, _ = load_model(config, folder, source)
    ids = source.encode("line ")
    for _ in range(12):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits_BTV[0, -1].argmax()))
    for settings in ({"temperature": 0.0}, {"top_k": 1}):
        assert generate(config, folder, "line ", max_new_tokens=12, **settings) == source.decode(ids)
    with pytest.raises(UserError, match="prompt= is empty"):
        generate(config, folder, "")
    with pytest.raises(UserError, match="has no checkpoint yet"):
        generate(config, folder.parent, "x")
