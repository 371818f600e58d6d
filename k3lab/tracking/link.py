"""The trainer's end of the courier: starts it, hands it commands, and never waits for it without a limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from k3lab.config.errors import UserError
from k3lab.tracking.base import RunRequest
from k3lab.tracking.local import METRICS

OPEN_S = 30.0  # longest wait for a server to give a run id
CREATE_S = 90.0  # the same for a local store: on a busy machine its creation takes long, but it ends
FLUSH_S = 5.0  # longest wait at a checkpoint: a training that goes on from there sends what was left
FINISH_S = 30.0  # longest wait for the last metrics at the end of a run
FINISH_DOWN_S = 10.0  # the same when the backend was given up before


class Link:
    """One courier process. ``say`` gets the lines that the user should read."""

    def __init__(self, backend: str, settings: Any, run: RunRequest, say: Callable[[str], None]) -> None:
        self._say = say
        self._kept = f"{run.folder}/{METRICS}"
        self._change = threading.Condition()
        self._run_id = run.run_id
        self._open_s = OPEN_S if str(getattr(settings, "uri", None)).startswith("http") else CREATE_S
        self._opened = False
        self._refused: str | None = None
        self._down = False
        self._told = False
        self._flushed = self._asked = 0
        self._finished: bool | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "k3lab.tracking.courier"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the trainer's business
            cwd=run.output if os.path.isdir(run.output) else run.folder,  # MLflow names ./mlruns here and there
        )
        self._reader = threading.Thread(target=self._listen, name="tracking", daemon=True)
        self._reader.start()
        self._command(do="open", backend=backend, settings=asdict(settings), run=asdict(run))

    @property
    def run_id(self) -> str | None:
        """The run's id; waits for it, but not forever. Raises UserError, once, if the store refuses the run."""
        self._wait(lambda: self._opened or self._down, self._open_s)
        if self._refused is not None and not self._told:
            self._told = self._down = True
            raise UserError(self._refused)
        if not (self._opened or self._down):
            self._lose("no answer")
        return self._run_id

    def flush(self) -> None:
        """Have everything sent; waits for it, but not longer than FLUSH_S, and not for a backend that is down."""
        if self._asked > self._flushed:  # the last one is still under way: waiting again would add up
            return
        self._asked += 1
        self._command(do="flush", id=self._asked)
        if not self._down:
            self._wait(lambda: self._flushed >= self._asked or self._down, FLUSH_S)
        if self._refused is not None:
            self._lose(self._refused)

    def artifact(self, path: str, folder: str | None) -> None:
        """Send a file or folder, without waiting."""
        self._command(do="artifact", path=path, folder=folder)

    def finish(self, status: str, artifacts: list[str]) -> None:
        """Close the run and end the courier. One that has much left to send goes on after this process."""
        self._command(do="finish", status=status, artifacts=artifacts)
        arrived = self._wait(lambda: self._finished is not None, FINISH_DOWN_S if self._down else FINISH_S)
        alive = self._process.poll() is None
        with self._change:
            complete, self._finished = self._finished, bool(self._finished)  # its end is no news any more
        if not arrived and alive and not self._down:
            self._say(f"the last metrics are still on their way to the store; all of them are in {self._kept}")
            return
        if not complete:
            self._lose(self._refused or "not everything was sent")
        try:
            self._process.wait(1.0 if arrived else 0.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(1.0)
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    def _command(self, **command: Any) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # the reader tells
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()

    def _wait(self, done: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        with self._change:
            while not (done() or self._refused is not None):
                left = deadline - time.monotonic()
                if left <= 0 or (self._process.poll() is not None and not self._reader.is_alive()):
                    return False
                self._change.wait(min(left, 1.0))
        return True

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            event = json.loads(raw)
            with self._change:
                self._take(event)
                self._change.notify_all()
        with self._change:
            ended = self._finished is None and self._refused is None
            self._change.notify_all()
        if ended:
            self._lose(f"the tracking process ended with exit code {self._process.wait()}")

    def _take(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "opened":
                self._opened, self._run_id = True, event["run_id"]
                if self._down:
                    self._regain()
            case "refused":
                self._refused = event["message"]
            case "down":
                self._run_id = event["run_id"] or self._run_id
                self._lose(event["message"])
            case "up":
                self._opened, self._run_id = True, event["run_id"]
                self._regain()
            case "flushed":
                self._flushed = event["id"]
            case "finished":
                self._finished = event["complete"]

    def _lose(self, why: str) -> None:
        self._down = True
        if not self._told:
            self._told = True
            self._say(f"tracking does not work ({why}); the run goes on, its metrics are kept in {self._kept}")

    def _regain(self) -> None:
        self._down = self._told = False
        self._say("tracking works again, with everything that was logged in the meantime")
