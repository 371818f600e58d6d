"""Addresses of stores, their masking, and the creation of one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from k3lab.config.errors import UserError
from k3lab.tracking.mlflow import MLflowSettings
from k3lab.tracking.store import (
    check_uri,
    default_uri,
    ensure_experiment,
    ensure_store,
    resolve_uri,
    scrub,
    sqlite_file,
)


def test_two_runs_create_the_store_at_the_same_moment(tmp_path: Path) -> None:
    output = tmp_path / "a b" / "runs"
    script = (
        "import sys; from k3lab.tracking.store import *; from pathlib import Path;"
        f"c = ensure_store(default_uri(Path({str(output)!r})));"
        "e = ensure_experiment(c, 'lab', Path('art')); print(c.create_run(e).info.run_id)"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [p.communicate(timeout=120) for p in both]
    assert [p.returncode for p in both] == [0, 0], outputs
    client = ensure_store(default_uri(output))
    assert [e.name for e in client.search_experiments()].count("lab") == 1
    experiment = client.get_experiment_by_name("lab")
    assert {r.info.run_id for r in client.search_runs([experiment.experiment_id])} == {o.strip() for o, _ in outputs}
    assert sorted(p.name for p in output.iterdir()) == ["mlflow.db", "mlflow.db.lock"]
    assert not Path("mlruns").exists()


def test_a_file_that_is_no_store_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"precious notes\n" * 100)
    with pytest.raises(UserError, match="no sqlite database"):
        ensure_store(default_uri(tmp_path))
    assert (tmp_path / "mlflow.db").read_bytes().startswith(b"precious")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        ensure_store(f"sqlite:///{tmp_path}/file/mlflow.db")


@pytest.mark.parametrize(
    "uri",
    [
        "runs",
        "file:///tmp/x",
        "sqlite://",
        "sqlite:///:memory:",
        "ftp://host",
        "/tmp/x.db",
        "http://",
        "http:///x",
        "http://h:port",
        "http://h y",
    ],
)
def test_addresses_that_cannot_hold_runs(uri: str) -> None:
    with pytest.raises(ValueError, match=r"tracking\.uri=.*must be sqlite:///FILE"):
        check_uri("tracking.uri", uri)


@pytest.mark.parametrize(
    "uri",
    [
        None,
        "sqlite:///a.db",
        "http://h:5000",
        "http://[::1]:5000/a?b=c",
        "https://u:p@h",
        "postgresql+psycopg2://u:p@h/db",
        "databricks",
    ],
)
def test_addresses_that_can(uri: str | None) -> None:
    check_uri("tracking.uri", uri)


def test_relative_files_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_uri("sqlite:///a b.db", tmp_path) == f"sqlite:///{tmp_path}/a b.db"
    assert resolve_uri("sqlite:////x/a.db?timeout=9", tmp_path) == "sqlite:////x/a.db?timeout=9"
    assert resolve_uri(None, Path("runs")) == f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert sqlite_file("http://h") is None
    assert MLflowSettings(uri="sqlite:///a b.db").uri == f"sqlite:///{tmp_path}/a b.db"


def test_a_masked_password_comes_back_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    masked = "http://me:***@host:5000"
    with pytest.raises(UserError, match="masked"):
        resolve_uri(masked, Path("runs"))
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter2")
    assert resolve_uri(masked, Path("runs")) == "http://host:5000"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter2@elsewhere")
    assert resolve_uri(masked, Path("runs")) == "http://host:5000"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter2@host:5000")
    assert resolve_uri(masked, Path("runs")) == "http://me:hunter2@host:5000"


def test_messages_show_no_password() -> None:
    uri = "postgresql://me:hunter2@host/db?sslpassword=s3cret"
    text = scrub(f"could not connect to {uri}\n  (password was 'hunter2', ssl s3cret)", uri)
    assert "hunter2" not in text
    assert "s3cret" not in text
    assert "host" in text
    assert "\n" not in text


def test_a_moved_store_takes_its_artifacts_along(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "a fter" / "runs"
    client = ensure_store(default_uri(before))
    experiment = ensure_experiment(client, "my lab", before / "artifacts")
    run = client.create_run(experiment)
    (before / "artifacts" / "my%20lab").mkdir(parents=True)  # MLflow makes it with the first artifact
    after.parent.mkdir()
    before.rename(after)
    client = ensure_store(default_uri(after))
    place = client.get_experiment(experiment).artifact_location
    assert place.startswith(f"{(after / 'artifacts').as_uri()}/")
    assert client.get_run(run.info.run_id).info.artifact_uri == f"{place}/{run.info.run_id}/artifacts"
    assert client.create_run(experiment).info.artifact_uri.startswith(f"{place}/")
    assert not before.exists()


def test_artifacts_that_lie_elsewhere_stay_there(tmp_path: Path) -> None:
    client = ensure_store(default_uri(tmp_path))
    experiment = ensure_experiment(client, "lab", tmp_path / "other" / "artifacts")
    ensure_store(default_uri(tmp_path))
    assert client.get_experiment(experiment).artifact_location == (tmp_path / "other" / "artifacts" / "lab").as_uri()
