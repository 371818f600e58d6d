"""The courier: a process beside the training that carries metrics.jsonl to the tracking backend.

The training appends to that file and goes on; MLflow's client, its retries and its half second of Python a
thousand metrics stay out of its process. The file is the queue: what a server does not take remains there and is
sent when the server is back, now or in the resumed run, and a trainer that is killed leaves nothing unsent.

Commands come on stdin and events leave on stdout, one JSON object a line:
    {"do": "open", "backend": …, "settings": {…}, "run": {…}}   → opened | refused | down
    {"do": "flush", "id": 3}                                    → flushed
    {"do": "artifact", "path": …, "folder": …}                  → nothing
    {"do": "finish", "status": …, "artifacts": […]}             → finished, then the process ends
``down`` and ``up`` tell that the backend was given up and reached again.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from k3lab.config.errors import UserError
from k3lab.config.registry import component, settings_class
from k3lab.tracking.base import Backend, Point, RunRequest, Stored
from k3lab.tracking.local import METRICS, parse

BATCH = 1000  # points a call: MLflow's limit
EVERY_S = 2.0  # between batches, so that a call's fixed cost is shared
RETRY_S = 15.0  # then the backend is given up; with one request's timeout that is less than 30 s
PROBE_S = 60.0  # a backend that was given up is tried once again after this, at the next flush
ORPHAN_S = 12  # for sending the rest after the trainer was killed
LOCK_S = 15.0  # how long the courier of a killed trainer may still be sending
LOCK = ".tracking.lock"


class Down(Exception):
    """The backend does not answer, or refuses for a reason that will not pass."""


class Courier:
    """Sends one run; ``send`` hands an event to the trainer."""

    def __init__(self, backend: Backend, run: RunRequest, send: Callable[..., None]) -> None:
        self.backend, self.run, self.send = backend, run, send
        self.run_id: str | None = None
        self.lock: FileLock | None = None  # held to the end: one courier a run at a time
        self.down = False
        self._tried = 0.0  # when the backend was last found not to answer
        self._stored = Stored({}, {})
        self._file: Any = None
        self._offset = 0  # of the first line in the file that was not read
        self._ready: list[Point] = []  # read, not sent
        self._artifacts: list[tuple[str, str | None]] = []

    def open(self) -> None:
        """Create or continue the run; raises UserError when the user must act and nothing has been trained yet."""
        try:
            self._attempt(self._open, RETRY_S)
        except UserError as error:
            if not self.run.start_step:
                raise
            self._give_up(error)
        except Down as error:
            self._give_up(error)
        else:
            self.send(event="opened", run_id=self.run_id)

    def drain(self, batches: int | None = None) -> None:
        """Send what the file has more, at most so many batches of it."""
        if not self.down:
            try:
                self._send_all(RETRY_S, batches)
            except Down as error:
                self._give_up(error)

    def flush(self) -> None:
        """Send everything; a backend that was given up a while ago gets one chance."""
        if self.down and time.monotonic() - self._tried >= PROBE_S:
            self._recover()
        self.drain()

    def artifact(self, path: str, folder: str | None) -> None:
        """Send a file, now or when the backend is back."""
        self._artifacts.append((path, folder))
        self.drain()

    def finish(self, status: str, artifacts: list[str]) -> bool:
        """Send the rest and close the run; returns whether all of it arrived."""
        self._artifacts += [(path, None) for path in artifacts]
        if self.down:
            self._recover()
        self.drain()
        arrived = not self.down
        if self.run_id is not None:
            # The status is worth its own attempt: metrics may have failed for a reason of theirs.
            run_id = self.run_id
            try:
                self._attempt(lambda: self.backend.finish(run_id, status), RETRY_S if arrived else 0.0)
            except (Down, UserError) as error:
                self._give_up(error)
        return arrived and not self.down

    def _recover(self) -> None:
        try:
            if self.run_id is None:
                self._attempt(self._open, 0.0)
            self._send_all(0.0)
        except (Down, UserError):
            self._tried = time.monotonic()
        else:
            self.down = False
            self.send(event="up", run_id=self.run_id)

    def _give_up(self, error: Exception) -> None:
        self._tried = time.monotonic()
        if not self.down:
            self.down = True
            self.send(event="down", message=str(error), run_id=self.run_id)

    def _open(self) -> None:
        run_id = self.backend.open(self.run)
        self._stored = self.backend.stored(run_id, self.run.start_step)
        self.run_id = run_id

    def _send_all(self, patience: float, batches: int | None = None) -> None:
        assert self.run_id is not None
        run_id = self.run_id
        while batches is None or batches > 0:
            while len(self._ready) < BATCH and self._read():
                pass
            points = self._ready[:BATCH]
            if not points:
                break
            self._attempt(partial(self.backend.log, run_id, points), patience)
            del self._ready[: len(points)]
            batches = None if batches is None else batches - 1
        while self._artifacts:
            path, folder = self._artifacts[0]
            if os.path.exists(path):
                self._attempt(partial(self.backend.artifact, run_id, path, folder), patience)
            self._artifacts.pop(0)

    def _attempt(self, call: Callable[[], None], patience: float) -> None:
        deadline, delay = time.monotonic() + patience, 0.25
        while True:
            try:
                return call()
            except UserError:
                raise
            except Exception as error:
                if not self.backend.transient(error) or time.monotonic() + delay > deadline:
                    raise Down(self.backend.describe(error)) from error
            time.sleep(delay)
            delay = min(2 * delay, 4.0)

    def _read(self) -> bool:
        """Read some whole lines of the file into ``_ready``, without what the store has already."""
        if self._file is None:  # one handle for life: a resumed trainer puts another file under this name
            path = Path(self.run.folder) / METRICS
            if not path.exists():
                return False
            self._file = path.open("rb")
        size = 1 << 18
        while True:
            self._file.seek(self._offset)
            chunk = self._file.read(size)
            end = chunk.rfind(b"\n") + 1
            if end or len(chunk) < size:
                break
            size *= 2  # a line of thousands of metrics
        for raw in chunk[:end].splitlines():
            self._ready += self._new_points(raw)
        self._offset += end
        return end > 0

    def _new_points(self, raw: bytes) -> Iterator[Point]:
        line = parse(raw)
        if line is None:
            return
        for name, value in line.metrics.items():
            if line.step <= self.run.start_step:
                known = line.step <= self._stored.latest.get(name, -1)
            else:
                known = line.step in self._stored.past.get(name, ())
            if not known:
                yield Point(name, value, line.time, line.step)


class Commands:
    """Lines from stdin, without ever blocking longer than asked."""

    def __init__(self) -> None:
        self._buffer = b""
        self._parent = os.getppid()
        self.ended = False

    def wait(self, seconds: float) -> list[dict[str, Any]]:
        """Return the commands that have arrived; sets ``ended`` once the trainer is gone."""
        if select.select([0], [], [], seconds)[0]:
            data = os.read(0, 1 << 16)
            self.ended = not data
            self._buffer += data
        # Processes that the trainer forked may hold its end of the pipe open.
        self.ended = self.ended or os.getppid() != self._parent
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines if line]


def serve(commands: Commands, send: Callable[..., None]) -> None:
    """Carry one run until it is finished or its trainer is gone."""
    courier: Courier | None = None
    while True:
        due = time.monotonic() + EVERY_S
        for command in commands.wait(EVERY_S):
            match command["do"]:
                case "open":
                    courier = _open(command, send)
                    if courier is None:
                        return
                case "flush" if courier:
                    courier.flush()
                    send(event="flushed", id=command["id"])
                case "artifact" if courier:
                    courier.artifact(command["path"], command["folder"])
                case "finish" if courier:
                    send(event="finished", complete=courier.finish(command["status"], command["artifacts"]))
                    return
        if commands.ended:
            if courier is not None:
                signal.alarm(ORPHAN_S)  # ends this process, whatever it hangs in
                courier.finish("failed", [])
            return
        if courier is not None and time.monotonic() >= due:
            courier.drain(batches=8)


def _open(command: dict[str, Any], send: Callable[..., None]) -> Courier | None:
    run = RunRequest(**command["run"])
    try:
        settings = settings_class("tracking", command["backend"])(**command["settings"])
        backend = component("tracking", command["backend"])(settings, Path(run.output))
        courier = Courier(backend, run, send)
        courier.lock = FileLock(Path(run.folder) / LOCK, timeout=LOCK_S)
        with suppress(Timeout):  # then the other one hangs, and is about to end itself
            courier.lock.acquire()
        courier.open()
    except UserError as error:
        send(event="refused", message=str(error))
        return None
    return courier


def main() -> None:
    """Run as the trainer's child: ``python -m k3lab.tracking.courier``."""
    events, nothing = os.dup(1), os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)  # libraries print here
    os.dup2(nothing, 2)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the trainer decides: it tells how the run ended

    def send(**event: Any) -> None:
        with suppress(BrokenPipeError):
            os.write(events, json.dumps(event).encode() + b"\n")

    try:
        serve(Commands(), send)
    except Exception as error:
        send(event="down", message=f"{type(error).__name__}: {error}", run_id=None)
        os._exit(1)
    os._exit(0)  # what MLflow's libraries would do at exit takes a second


if __name__ == "__main__":
    main()
