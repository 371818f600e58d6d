"""The dashboard: MLflow's own server on a run store, on 127.0.0.1 only, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import deque
from contextlib import suppress
from pathlib import Path
from types import FrameType

from k3lab.config.errors import UserError, nearest
from k3lab.tracking.store import DATABASE, default_uri, follow, quiet_environment

HOST = "127.0.0.1"
START_S = 90.0  # importing MLflow's server takes some ten seconds on a small machine
STOP_S = 10.0


def serve(output: Path, port: int, start_s: float = START_S) -> int:
    """Serve the store in ``output`` until SIGINT or SIGTERM; returns the exit code.

    Raises UserError if there is no store or the port is taken.
    """
    _require_store(output)
    with suppress(sqlite3.Error):  # a file that is no store, or cannot be written: MLflow says so
        follow((output / DATABASE).absolute())
    _require_free(port)
    stop = _StopSignal()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log, stop:
        server = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "mlflow", "server"),
                *("--host", HOST, "--port", str(port), "--workers", "1"),
                *("--default-artifact-root", (output / "artifacts").absolute().as_uri()),
                *("--uvicorn-opts", "--log-level warning"),
            ],
            # The address goes by environment: a command line is visible to everyone on the machine.
            env={**os.environ, **quiet_environment(), **_server_environment(output)},
            cwd=output,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the whole group
        )
        try:
            return _run(server, port, log, stop, start_s)
        finally:
            _end(server)


def _run(server: subprocess.Popen[bytes], port: int, log: object, stop: _StopSignal, start_s: float) -> int:
    address = f"http://{HOST}:{port}"
    deadline = time.monotonic() + start_s
    while not stop.came and server.poll() is None and not _answers(address):
        if time.monotonic() > deadline:
            print(f"k3lab: MLflow's server did not answer within {start_s:g} s: {_tail(log)}", file=sys.stderr)
            return 1
        stop.wait(0.2)
    if not stop.came and server.poll() is None:
        print(f"{address}  (Ctrl-C ends it)", flush=True)
    while not stop.came and server.poll() is None:
        stop.wait(1.0)
    if stop.came:
        return 0
    print(f"k3lab: MLflow's server ended with exit code {server.returncode}: {_tail(log)}", file=sys.stderr)
    return 1


def _require_store(output: Path) -> None:
    if (output / DATABASE).is_file():
        return
    around = output.parent if output.parent.is_dir() else Path()
    beside = [p.parent.name for p in around.glob(f"*/{DATABASE}")]
    raise UserError(
        f"--output {output}: no run store ({DATABASE}) there; train something first, or name the folder that "
        f"paths.output named{nearest(output.name, beside)}"
    )


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise UserError(f"--port {port}: {error.strerror}; choose another, such as --port {port + 1}") from error


def _server_environment(output: Path) -> dict[str, str]:
    uri = default_uri(output)
    return {
        "MLFLOW_BACKEND_STORE_URI": uri,
        "MLFLOW_REGISTRY_STORE_URI": uri,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }


def _answers(address: str) -> bool:
    try:
        # Not by a proxy: the server is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{address}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _tail(log: object) -> str:
    log.seek(0)  # type: ignore[attr-defined]
    lines = deque((line.strip() for line in log if line.strip()), maxlen=3)  # type: ignore[attr-defined]
    return "; ".join(lines) or "no output"


def _end(server: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, number)
        except ProcessLookupError:
            return
        try:
            server.wait(STOP_S)
        except subprocess.TimeoutExpired:
            continue


class _StopSignal:
    """Whether SIGINT or SIGTERM came, during a ``with`` block."""

    def __init__(self) -> None:
        self.came = False

    def wait(self, seconds: float) -> None:
        """Sleep; a signal does not cut the sleep short by more than ``seconds``."""
        if not self.came:
            time.sleep(seconds)

    def __enter__(self) -> _StopSignal:
        self._before = {n: signal.signal(n, self._handle) for n in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.came = True
