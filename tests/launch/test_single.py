"""One training: which folder, which configuration, new or going on."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from k3lab.config.errors import UserError
from k3lab.config.load import load, load_folder
from k3lab.launch.folders import output_of, stamp
from k3lab.launch.single import run_single, split_resume
from k3lab.tracking.local import write_summary


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Path, bool]]:
    """Replace the training by one that leaves a config and an unfinished summary."""
    seen: list[tuple[Any, Path, bool]] = []

    def run_training(config: Any, folder: Path, parent_run_id: str | None = None, resume: bool = False) -> int:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(config.to_yaml())
        fingerprint = config.fingerprint()
        write_summary(folder, {"status": "interrupted", "steps": 1, "started": len(seen), "fingerprint": fingerprint})
        seen.append((config, folder, resume))
        return 130

    monkeypatch.setitem(sys.modules, "k3lab.training.run", SimpleNamespace(run_training=run_training))  # type: ignore[arg-type]
    return seen


def test_a_new_run_has_a_folder_of_its_own(
    trainings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_single(["tracking=none", "name=lab", "paths.output=out"]) == 130
    assert run_single(["tracking=none", "name=lab", "paths.output=out"]) == 130
    folders = [folder for _, folder, _ in trainings]
    assert len(set(folders)) == 2
    assert capsys.readouterr().out.splitlines() == [str(f) for f in folders]
    for config, folder, resume in trainings:
        assert not resume
        assert folder.parent == tmp_path / "out" / "lab"
        assert config.paths.output == str(tmp_path / "out"), "a saved run must mean the same store from anywhere"


def test_a_run_goes_on_as_it_was(
    trainings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_single(["tracking=none", "decay=softplus", "optim.lr=0.01"])
    folder = trainings[0][1]
    (tmp_path / "runs" / "mlflow.db").write_text("")
    (tmp_path / "moved").mkdir()
    (tmp_path / "runs").rename(tmp_path / "moved" / "elsewhere")
    moved = tmp_path / "moved" / "elsewhere" / folder.parent.name / folder.name
    assert run_single([f"resume={moved}", "trainer.max_steps=900"]) == 130
    config, where, resume = trainings[1]
    assert (where, resume) == (moved, True)
    assert (config.decay.name, config.optim.lr, config.trainer.max_steps) == ("softplus", 0.01, 900)
    assert config.paths.output == str(tmp_path / "moved" / "elsewhere")
    for change in ("optim.lr=0.02", "decay=scalar", "seed=4"):
        with pytest.raises(UserError, match=rf"{change.split('=')[0]}.*a run goes on as it began"):
            run_single([f"resume={moved}", change])
    with pytest.raises(UserError, match="no such folder"):
        run_single([f"resume={moved}x"])
    with pytest.raises(UserError, match="no run folder"):
        run_single([f"resume={tmp_path}"])


def test_auto_takes_the_newest_unfinished_run_of_the_configuration(trainings: Any, tmp_path: Path) -> None:
    base = ["tracking=none", f"paths.output={tmp_path}"]
    run_single([*base, "seed=1", "resume=auto"])
    run_single([*base, "seed=1"])
    run_single([*base, "seed=2"])
    run_single([*base, "seed=1", "resume=auto"])
    assert [resume for _, _, resume in trainings] == [False, False, False, True]
    assert trainings[3][1] == trainings[1][1]


def test_small_parts(tmp_path: Path) -> None:
    assert split_resume(["a=1", "resume=auto", "b=2"]) == ("auto", ["a=1", "b=2"])
    assert split_resume(["resume=null"]) == (None, [])
    assert len({stamp() for _ in range(200)}) == 200
    assert output_of(tmp_path / "a" / "b", "given") == Path("given")
    config = load(["tracking=none"])
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert load_folder(tmp_path).fingerprint() == config.fingerprint()


@pytest.mark.parametrize("text", ["resume=runs/x", "+resume=runs/x", "++resume='runs/x'"])
def test_resume_is_taken_in_every_form_of_an_override(text: str) -> None:
    assert split_resume(["seed=1", text]) == ("runs/x", ["seed=1"])


def test_resume_needs_a_name() -> None:
    with pytest.raises(UserError, match="run folder, auto, or null"):
        split_resume(["resume="])
