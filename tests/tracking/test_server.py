"""`k3lab ui`: MLflow's server on the store; and a tracker that talks to a server over HTTP."""

from __future__ import annotations

import json
import math
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from k3lab.config.errors import UserError
from k3lab.tracking.mlflow import MLflowSettings
from k3lab.tracking.run import Tracker
from k3lab.tracking.server import serve
from k3lab.tracking.store import default_uri, ensure_store


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_no_store_and_a_taken_port_are_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mlflow.db").write_bytes(b"")
    with pytest.raises(UserError, match=r"no run store.*did you mean 'runs'"):
        serve(tmp_path / "rnus", 5000)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match="in use"):
            serve(tmp_path / "runs", taken.getsockname()[1])


@pytest.mark.slow
def test_a_run_over_http_and_the_end_of_the_server(
    tmp_path: Path, make_config: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    output, port = tmp_path / "my runs", free_port()
    ensure_store(default_uri(output))
    script = (
        "import sys; from pathlib import Path; from k3lab.tracking.server import serve;"
        f"sys.exit(serve(Path({str(output)!r}), {port}))"
    )
    server = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert server.stdout.readline().startswith(f"http://127.0.0.1:{port} ")
        config = make_config(MLflowSettings(uri=f"http://127.0.0.1:{port}", experiment="far"))
        folder = tmp_path / "train" / "r"
        tracker = Tracker.open(config, folder)
        for step in range(1, 4):
            tracker.log({"train/loss": math.nan if step == 2 else 1 / step, "up": math.inf}, step)
        tracker.finish("interrupted", {"steps": 3})
        run_id = tracker.run_id
        tracker = Tracker.open(config, folder, run_id=run_id, start_step=1)
        assert tracker.run_id == run_id
        for step in range(2, 6):
            tracker.log({"train/loss": math.nan if step == 2 else 1 / step}, step)
        tracker.flush()
        artifact = f"http://127.0.0.1:{port}/get-artifact?path=summary.json&run_uuid={run_id}"
        assert json.load(urllib.request.urlopen(artifact))["status"] == "interrupted"
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0
    tracker.log({"train/loss": 1 / 6}, 6)
    tracker.finish("finished", {"steps": 6})  # the server is gone: one line, and the values are in the file
    assert capfd.readouterr().err.count("metrics.jsonl") == 1
    client = ensure_store(default_uri(output))
    stored = sorted((m.step, m.value) for m in client.get_metric_history(run_id, "train/loss"))
    assert [s for s, _ in stored] == [1, 2, 3, 4, 5]
    assert math.isnan(stored[1][1])
    assert [v for s, v in stored if s != 2] == [1 / s for s in (1, 3, 4, 5)]
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 6
    assert sorted(p.name for p in output.iterdir()) == ["artifacts", "mlflow.db", "mlflow.db.lock"]
