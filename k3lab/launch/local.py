"""The local launcher: jobs are processes on this machine, some at once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from k3lab.config import checks
from k3lab.launch.base import LOG, Launcher
from k3lab.launch.job import JOB, PARENT, Job, job_command

POLL_S = 0.1


@dataclass(frozen=True)
class LocalSettings:
    """How many jobs at once."""

    name: str = "local"
    jobs: int = 1  # each takes trainer.devices devices
    grace: float = 60.0  # seconds that interrupted jobs get to save a checkpoint

    def __post_init__(self) -> None:
        checks.in_range("jobs", self.jobs, 1, 1024)
        checks.non_negative("grace", self.grace)


class _Running(NamedTuple):
    job: Job
    slot: int
    process: subprocess.Popen[bytes]


class Local(Launcher):
    """Keeps ``jobs`` slots; a job in a slot has its share of the processor's cores and of the GPUs."""

    def __init__(self, settings: Any, config: Any) -> None:
        super().__init__(settings, config)
        self._running: list[_Running] = []
        self._gpus = visible_gpus()

    def free(self) -> int:
        return int(self.settings.jobs) - len(self._running)

    def start(self, job: Job, config: Any, environment: dict[str, str]) -> None:
        slot = min(set(range(self.settings.jobs)) - {r.slot for r in self._running})
        environment = environment | {PARENT: str(os.getpid())} | self._share(slot, config.trainer.devices)
        folder = Path(job.folder)
        with (folder / LOG).open("ab") as log:
            process = subprocess.Popen(
                job_command(folder / JOB),
                env=environment,
                cwd=job.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the sweep alone, which passes it on once
            )
        self._running.append(_Running(job, slot, process))

    def ended(self, seconds: float) -> list[tuple[Job, int]]:
        deadline = time.monotonic() + seconds
        while True:
            done = [r for r in self._running if r.process.poll() is not None]
            if done or not self._running or time.monotonic() >= deadline:
                break
            time.sleep(POLL_S)
        self._running = [r for r in self._running if r not in done]
        return [(r.job, int(r.process.returncode)) for r in done]

    def signal(self, number: int, job: Job | None = None) -> None:
        for r in self._of(job):
            r.process.send_signal(number)

    def kill(self, job: Job | None = None) -> None:
        for r in self._of(job):
            with suppress(ProcessLookupError):
                os.killpg(r.process.pid, signal.SIGKILL)

    def _of(self, job: Job | None) -> list[_Running]:
        return [r for r in self._running if job is None or r.job.folder == job.folder]

    def _share(self, slot: int, devices: int) -> dict[str, str]:
        """Return the variables that give a slot its cores and its GPUs; with one slot a job has everything."""
        jobs = self.settings.jobs
        if jobs == 1:
            return {}
        share = {}
        if "OMP_NUM_THREADS" not in os.environ:
            share["OMP_NUM_THREADS"] = str(max(1, _cores() // jobs))
        if len(self._gpus) > 1:
            first = slot * devices
            share["CUDA_VISIBLE_DEVICES"] = ",".join(
                dict.fromkeys(self._gpus[(first + i) % len(self._gpus)] for i in range(devices))
            )
        return share


def visible_gpus() -> list[str]:
    """Return the NVIDIA devices that a job may see, by the names that CUDA_VISIBLE_DEVICES takes; no torch needed."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip()]
    numbers = [re.fullmatch(r"nvidia(\d+)", p.name) for p in Path("/dev").glob("nvidia*")]
    return [str(i) for i in range(sum(match is not None for match in numbers))]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
