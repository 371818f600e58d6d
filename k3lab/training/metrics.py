"""Where a training's figures pass through, and how fast it runs."""

from __future__ import annotations

import time
from typing import Any

import torch

from k3lab.tracking import names
from k3lab.training.flops import mfu


class MetricLog:
    """Hands metrics to a tracker and remembers the last value of each."""

    def __init__(self, tracker: Any = None, latest: dict[str, float] | None = None) -> None:
        self.tracker = tracker
        self.latest: dict[str, float] = dict(latest or {})

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Log values that belong to optimizer step ``step``."""
        values = {name: float(value) for name, value in metrics.items()}
        self.latest.update(values)
        if self.tracker is not None and values:
            self.tracker.log(values, step)


class Speed:
    """Time spent in training steps alone: validation, diagnostics and checkpoints are left out."""

    def __init__(self, tokens_per_step: int, flops_per_token: float, device: torch.device, devices: int = 1) -> None:
        self.tokens_per_step = tokens_per_step
        self.flops_per_token = flops_per_token
        self.device = device
        self.devices = devices
        self._seconds = 0.0
        self._steps = 0
        self._since: float | None = None

    def start(self) -> None:
        """A training step begins."""
        self._since = time.perf_counter()

    def stop(self) -> None:
        """A training step ends."""
        if self._since is not None:
            self._seconds += time.perf_counter() - self._since
            self._steps += 1
            self._since = None

    def metrics(self) -> dict[str, float]:
        """Return the speed since the last call by metric name, and begin a new interval."""
        seconds, steps = self._seconds, self._steps
        self._seconds, self._steps = 0.0, 0
        if not steps or seconds <= 0:
            return {}
        tokens_per_s = steps * self.tokens_per_step / seconds
        found = {names.PERF_TOKENS_PER_S: tokens_per_s, names.PERF_STEP_MS: 1e3 * seconds / steps}
        if self.device.type == "cuda":
            found[names.PERF_PEAK_MEMORY_GIB] = torch.cuda.max_memory_allocated(self.device) / 2**30
            name = torch.cuda.get_device_name(self.device)
            share = mfu(self.flops_per_token, tokens_per_s, name, self.devices)
            if share is not None:
                found[names.PERF_MFU] = share
        return found
