"""Settings, signals, the lock, the display, rates of devices."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from k3lab.config.errors import UserError
from k3lab.config.load import load
from k3lab.tracking import names
from k3lab.training.display import Display
from k3lab.training.flops import mfu, peak_flops
from k3lab.training.lock import RunLock, is_running
from k3lab.training.machine import accelerator, deterministic, precision, require_memory
from k3lab.training.metrics import MetricLog, Speed
from k3lab.training.resume import find_unfinished, require_run
from k3lab.training.settings import TrainerSettings
from k3lab.training.signals import Aborted, Signals


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"accelerator": "tpu"}, "accelerator=tpu: must be one of auto, cpu, gpu"),
        ({"precision": "bf61"}, "did you mean 'bf16'"),
        ({"max_steps": 0}, "max_steps=0"),
        ({"accumulate": -1}, "accumulate=-1"),
        ({"clip": 0.0}, "clip=0.0"),
        ({"val_every": 0}, "val_every=0"),
        ({"workers": -1}, "workers=-1"),
    ],
)
def test_settings_refuse(values: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainerSettings(**values)


def test_devices_and_accumulation_divide_the_global_batch() -> None:
    config = SimpleNamespace(data=SimpleNamespace(batch_size=12))
    TrainerSettings(accumulate=3, devices=2, clip=None, val_every=None).check(config)
    with pytest.raises(ValueError, match=r"data\.batch_size=12: must be a multiple of .*=8"):
        TrainerSettings(accumulate=4, devices=2).check(config)


def test_signals_are_remembered_and_a_second_interrupt_aborts() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.exit_code == 143
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.exit_code == 143, "the first one counts"
        with pytest.raises(Aborted):
            os.kill(os.getpid(), signal.SIGINT)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import sys, subprocess\nfrom pathlib import Path\nfrom k3lab.training.lock import RunLock\n"
        "with RunLock(Path(sys.argv[1])):\n"
        "    child = subprocess.Popen(['sleep', '60'], close_fds=False, stdout=subprocess.DEVNULL)\n"
        "    print(child.pid, flush=True)\n    sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        assert is_running(tmp_path)
        with pytest.raises(UserError, match="is being trained by process"), RunLock(tmp_path):
            pass
        holder.kill()
        holder.wait()
        assert not is_running(tmp_path), "a child that lives on does not hold it"
        with RunLock(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        holder.communicate()


def make_run(folder: Path, **summary: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("seed: 0\n")
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_the_newest_unfinished_run_is_found(tmp_path: Path) -> None:
    assert find_unfinished(tmp_path / "absent", "f") is None
    old = make_run(tmp_path / "train" / "a", status="running", fingerprint="f", started=1.0)
    new = make_run(tmp_path / "x" / "sweep-1" / "job", status="interrupted", fingerprint="f", started=2.0)
    make_run(tmp_path / "train" / "b", status="finished", fingerprint="f", started=3.0)
    make_run(tmp_path / "train" / "c", status="running", fingerprint="other", started=4.0)
    assert find_unfinished(tmp_path, "f") == new
    (new / "summary.json").write_text("{")
    assert find_unfinished(tmp_path, "f") == old
    assert find_unfinished(tmp_path, "none") is None


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run_a").mkdir()
    with pytest.raises(UserError, match="no such folder; did you mean 'run_a'"):
        require_run(str(tmp_path / "run_b"))
    with pytest.raises(UserError, match=r"has no config\.yaml"):
        require_run(str(tmp_path / "run_a"))
    pickle = tmp_path / "last.ckpt"
    pickle.write_bytes(b"x")
    with pytest.raises(UserError, match="may run code"):
        require_run(str(pickle))
    assert require_run(str(make_run(tmp_path / "r"))) == tmp_path / "r"


def display(every: int = 5, live: bool = False) -> Display:
    return Display("title", max_steps=20, start_step=0, every=every, bytes_per_token=1.0, live=live)


def test_plain_lines_come_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    latest = {names.TRAIN_LOSS: 0.693147, names.BALANCE_MAX_VIO: 1.25, names.BALANCE_MAX_VIO_FLOOR: 0.5}
    with display(live=True) as shown:  # not a terminal: lines
        shown.start()
        for step in range(1, 21):
            shown.update(step, latest)
    out, err = capsys.readouterr()
    assert out == "", "standard output is the folder's"
    lines = err.splitlines()
    assert lines[0] == "title"
    assert [line.split()[1] for line in lines[1:]] == ["1/20", "5/20", "10/20", "15/20", "20/20"]
    assert "loss 0.6931  bits/byte 1.000" in lines[1]
    assert "worst MaxVio 1.25 (floor 0.50)" in lines[1]
    assert lines[-1].count("ETA 0:00:00") == 1


def test_the_live_panel_shows_the_same(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "150")
    with display(live=True) as shown:
        assert shown.live is not None
        shown.update(20, {names.TRAIN_LOSS: 2.0, names.PERF_TOKENS_PER_S: 12345.0, names.VAL_LOSS: 3.0})
        shown.note("a line that stays")
    err = capsys.readouterr().err
    for word in ("step 20/20", "12,345", "ETA", "val loss", "a line that stays"):
        assert word in err


def test_rates_of_devices() -> None:
    assert peak_flops("NVIDIA H200") == 989.4e12
    assert peak_flops("NVIDIA H100 80GB HBM3") == 989.4e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak_flops("NVIDIA L40S") == 362e12
    assert peak_flops("NVIDIA L4") == 121e12
    assert peak_flops("GeForce 256") is None
    assert mfu(1e9, 1e5, "NVIDIA H200", 2) == pytest.approx(3 * 1e14 / (2 * 989.4e12))
    assert mfu(1e9, 1e5, "abacus", 1) is None


def test_speed_leaves_out_what_is_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 5.0, 6.0])
    monkeypatch.setattr("k3lab.training.metrics.time.perf_counter", lambda: next(now))
    speed = Speed(100, 1.0, torch.device("cpu"))
    for _ in range(2):
        speed.start()
        speed.stop()
    assert speed.metrics() == {names.PERF_TOKENS_PER_S: 100.0, names.PERF_STEP_MS: 1000.0}
    assert speed.metrics() == {}


def test_the_log_remembers_last_values() -> None:
    lines = []
    log = MetricLog(SimpleNamespace(log=lambda metrics, step: lines.append((step, metrics))), {"a": 1.0})
    log.log({"b": torch.tensor(2.0)}, 1)
    log.log({}, 2)
    log.log({"b": 3.0}, 3)
    assert lines == [(1, {"b": 2.0}), (3, {"b": 3.0})]
    assert log.latest == {"a": 1.0, "b": 3.0}


def machine(**values: object) -> SimpleNamespace:
    return SimpleNamespace(trainer=TrainerSettings(**values))


def test_devices_and_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert (accelerator(machine()), precision(machine())) == ("cpu", "32-true")
    assert precision(machine(precision="bf16")) == "bf16-mixed"
    with pytest.raises(UserError, match="no CUDA device"):
        accelerator(machine(accelerator="gpu"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert (accelerator(machine()), precision(machine())) == ("gpu", "bf16-mixed")
    assert precision(machine(accelerator="cpu")) == "32-true"


def test_deterministic_algorithms_end_with_the_block() -> None:
    with deterministic(True):
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["model.hidden_size=300000"], "parameters need at least"),
        (["ffn.experts=100000000"], "parameters need at least"),
        (["model.hidden_size=30000000000"], "too large"),
        (["data.batch_size=1000000000"], "a micro-batch of 256,000,000,000 tokens"),
    ],
)
def test_what_cannot_fit_is_refused_before_it_is_made(overrides: list[str], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        require_memory(load(overrides), 256)


def test_what_fits_may_be_trained() -> None:
    require_memory(load(["model=tiny"]), 256)


def test_more_workers_than_cores_get_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert not TrainerSettings(workers=2).warnings(None)
    assert "2 cores" in TrainerSettings(workers=3).warnings(None)[0]
