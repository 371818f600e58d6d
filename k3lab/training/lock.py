"""Whether a process is training in a run folder: a lock that no crash leaves behind."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from typing import Any, TextIO

from k3lab.config.errors import UserError
from k3lab.tracking.local import read_summary

LOCK = ".lock"


def owner() -> dict[str, Any]:
    """Return who trains: process id and host, for people who read the summary."""
    return {"pid": os.getpid(), "host": socket.gethostname()}


class RunLock:
    """An exclusive lock on a run folder for the time of a ``with`` block; UserError if another process has it.

    The system drops it when the process ends, however it ends. It is a record lock because children do not
    inherit those: a worker that outlives a killed trainer must not keep the run from being resumed. (For the
    process itself such a lock is no obstacle, and opening and closing the file again would drop it.)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: TextIO | None = None

    def __enter__(self) -> RunLock:
        self._file = (self.folder / LOCK).open("a+", encoding="utf-8")
        if not _try_lock(self._file):
            self._file.close()
            who = (read_summary(self.folder) or {}).get("process") or {}
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
