"""The local launcher, with jobs that are small scripts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from k3lab.launch import local
from k3lab.launch.job import Job
from k3lab.launch.local import Local, LocalSettings, visible_gpus

CONFIG: Any = SimpleNamespace(trainer=SimpleNamespace(devices=1))
WAIT_FOR_SIGINT = """
import signal, sys, time
def save(*_): print("saved"); sys.exit(130)
signal.signal(signal.SIGINT, save)
print("ready", flush=True)
time.sleep(60)
"""


def job(folder: Path, index: int) -> Job:
    path = folder / f"{index:03d}"
    path.mkdir()
    return Job(index, "x", [], str(path), str(folder))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(text: str) -> None:
        monkeypatch.setattr(local, "job_command", lambda file: [sys.executable, "-c", text])

    return use


def collect(launcher: Local, count: int, seconds: float = 30.0) -> dict[int, int]:
    codes: dict[int, int] = {}
    deadline = time.monotonic() + seconds
    while len(codes) < count and time.monotonic() < deadline:
        codes |= {j.index: code for j, code in launcher.ended(0.5)}
    return codes


def until(condition: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def test_jobs_fill_the_slots_and_leave_their_output(tmp_path: Path, script: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    script("import os, sys; print('out', os.environ['OMP_NUM_THREADS']); print('err', file=sys.stderr); sys.exit(3)")
    launcher = Local(LocalSettings(jobs=2), CONFIG)
    assert launcher.free() == 2
    jobs = [job(tmp_path, i) for i in range(2)]
    for one in jobs:
        launcher.start(one, CONFIG, dict(os.environ))
    assert launcher.free() == 0
    assert collect(launcher, 2) == {0: 3, 1: 3}
    assert launcher.free() == 2
    cores = max(1, len(os.sched_getaffinity(0)) // 2)
    assert sorted((Path(jobs[0].folder) / "log.txt").read_text().split()) == sorted(["out", str(cores), "err"])


def test_a_signal_is_passed_on_once_and_a_deaf_job_is_killed(tmp_path: Path, script: Any) -> None:
    launcher = Local(LocalSettings(jobs=2), CONFIG)
    script(WAIT_FOR_SIGINT)
    polite = job(tmp_path, 0)
    launcher.start(polite, CONFIG, dict(os.environ))
    script(
        WAIT_FOR_SIGINT.replace("sys.exit(130)", "pass").replace("time.sleep(60)", "[time.sleep(1) for _ in range(99)]")
    )
    deaf = job(tmp_path, 1)
    launcher.start(deaf, CONFIG, dict(os.environ))
    until(lambda: all("ready" in (Path(j.folder) / "log.txt").read_text() for j in (polite, deaf)))
    launcher.signal(signal.SIGINT)
    assert collect(launcher, 1) == {0: 130}
    assert "saved" in (Path(polite.folder) / "log.txt").read_text()
    assert launcher.ended(0.2) == []
    launcher.kill()
    assert collect(launcher, 1) == {1: -signal.SIGKILL}


def test_jobs_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    child = (
        "import signal, sys, time; from k3lab.launch.job import end_with_launcher; end_with_launcher();"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(143)));"
        "print('ready', flush=True); time.sleep(60)"
    )
    parent = f"""
import os, sys, time
from pathlib import Path
from types import SimpleNamespace
from k3lab.launch import local
from k3lab.launch.job import Job
local.job_command = lambda file: [sys.executable, "-c", {child!r}]
config = SimpleNamespace(trainer=SimpleNamespace(devices=1))
launcher = local.Local(local.LocalSettings(), config)
launcher.start(Job(0, "x", [], {str(tmp_path)!r}, {str(tmp_path)!r}), config, dict(os.environ))
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", parent])
    log = tmp_path / "log.txt"
    until(lambda: log.exists() and "ready" in log.read_text())
    process.kill()
    process.wait()
    until(lambda: "saved" in log.read_text())


def test_slots_share_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5, 6,7")
    assert visible_gpus() == ["4", "5", "6", "7"]
    two = Local(LocalSettings(jobs=2), CONFIG)
    assert two._share(0, 2)["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert two._share(1, 2)["CUDA_VISIBLE_DEVICES"] == "6,7"
    assert two._share(1, 1)["CUDA_VISIBLE_DEVICES"] == "5"
    assert Local(LocalSettings(jobs=1), CONFIG)._share(0, 2) == {}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES" not in Local(LocalSettings(jobs=2), CONFIG)._share(0, 1)


@pytest.mark.parametrize("values", [{"jobs": 0}, {"jobs": 10**9}, {"grace": -1.0}])
def test_settings(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        LocalSettings(**values)
