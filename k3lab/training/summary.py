"""The run folder's ``summary.json``, and the lock that says whether a process is training in the folder."""

from __future__ import annotations

import fcntl
import json
import math
import os
import socket
from pathlib import Path
from typing import Any, TextIO

from k3lab.config.errors import UserError

SUMMARY = "summary.json"
LOCK = ".lock"


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the summary of a run folder, or an empty dict if there is none that can be read."""
    try:
        found = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Replace the summary atomically; NaN and infinities become null."""
    write_json(folder / SUMMARY, summary)


def write_json(file: Path, values: dict[str, Any]) -> None:
    """Replace a JSON file atomically; NaN and infinities become null."""
    draft = file.with_name(f".tmp-{file.name}")
    try:
        with draft.open("w", encoding="utf-8") as out:
            json.dump(finite(values), out, indent=2, allow_nan=False)
            out.write("\n")
            out.flush()
            os.fsync(out.fileno())
        draft.replace(file)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def finite(value: Any) -> Any:
    """Return nested JSON values with null for every float that is not finite."""
    if isinstance(value, dict):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def owner() -> dict[str, Any]:
    """Return who trains: process id and host, for people who read the summary."""
    return {"pid": os.getpid(), "host": socket.gethostname()}


class RunLock:
    """An exclusive lock on a run folder for the time of a ``with`` block; UserError if another process has it.

    The system drops it when the process ends, however it ends. It is a record lock because children do not
    inherit those: a worker that outlives a killed trainer must not keep the run from being resumed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: TextIO | None = None

    def __enter__(self) -> RunLock:
        self._file = (self.folder / LOCK).open("a+", encoding="utf-8")
        if not _try_lock(self._file):
            self._file.close()
            who = read_summary(self.folder).get("process") or {}
            raise UserError(
                f"{self.folder} is being trained by process {who.get('pid', '?')} on {who.get('host', '?')}: "
                "stop that one first"
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def is_running(folder: Path) -> bool:
    """Return whether another process is training in the folder."""
    try:
        with (folder / LOCK).open("r+", encoding="utf-8") as file:
            return not _try_lock(file)
    except OSError:
        return False


def _try_lock(file: TextIO) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks: better to train than to refuse
        return True
    return True
