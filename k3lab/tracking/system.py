"""Use of the machine, sampled now and then beside the metrics of a step."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil

GIB = 2**30


class SystemMetrics:
    """Samples at most every ``every`` seconds; free of cost in between."""

    def __init__(self, folder: Path, every: float) -> None:
        self._folder, self._every, self._next = folder, every, 0.0
        self._process = psutil.Process()
        self._process.cpu_percent()  # the first call starts the interval
        psutil.cpu_percent()

    def sample(self) -> dict[str, float]:
        """Return a sample if one is due, else nothing."""
        now = time.monotonic()
        if now < self._next:
            return {}
        self._next = now + self._every
        memory, disk = psutil.virtual_memory(), psutil.disk_usage(str(self._folder))
        found = {
            "system/cpu_percent": psutil.cpu_percent(),
            "system/process_cpu_percent": self._process.cpu_percent(),
            "system/process_memory_gib": self._process.memory_info().rss / GIB,
            "system/memory_percent": memory.percent,
            "system/disk_free_gib": disk.free / GIB,
        }
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            for i in range(torch.cuda.device_count()):
                free, total = torch.cuda.mem_get_info(i)
                found[f"system/gpu_{i}_memory_gib"] = (total - free) / GIB
        return found
