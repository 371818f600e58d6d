"""Follows the metrics.jsonl of a running job, reading only what is new."""

from __future__ import annotations

import os
from pathlib import Path

from k3lab.tracking.local import METRICS, parse


class Watch:
    """The newest step, the newest value of every metric, and all points of one metric."""

    def __init__(self, folder: Path, metric: str | None = None) -> None:
        self._path, self._metric = folder / METRICS, metric
        self._begin()
        self._file: tuple[int, int] | None = None

    def _begin(self) -> None:
        self._offset = 0
        self.step = 0
        self.metrics: dict[str, float] = {}
        self.points: dict[int, float] = {}

    def read(self) -> None:
        """Take the lines that were completed since the last call."""
        try:
            file = self._path.open("rb")
        except OSError:  # it has not begun
            return
        with file:
            info = os.fstat(file.fileno())
            if (info.st_dev, info.st_ino) != self._file or info.st_size < self._offset:
                self._file = (info.st_dev, info.st_ino)
                self._begin()  # a resumed job has put another file there, without the steps that it does again
            file.seek(self._offset)
            for raw in file:
                if not raw.endswith(b"\n"):
                    break
                self._offset += len(raw)
                if (line := parse(raw)) is None:
                    continue
                self.step = max(self.step, line.step)
                self.metrics.update(line.metrics)
                if self._metric in line.metrics:
                    self.points[line.step] = line.metrics[self._metric]
