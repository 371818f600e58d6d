"""A job of a sweep: ``python -m k3lab.launch.job FOLDER/job.json``, the one place where a job's training starts.

Every launcher runs this command in a fresh interpreter, on this machine or on another one; the result is the
folder's summary.json and the exit code. The file holds no password: one in ``tracking.uri`` is masked there and
comes with the process's environment (MLFLOW_TRACKING_URI).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from k3lab.config.errors import UserError
from k3lab.config.load import load
from k3lab.config.schema import mask
from k3lab.launch.folders import with_output
from k3lab.tracking.local import write_json
from k3lab.tracking.run import JOB

PARENT = "K3LAB_LAUNCHER_PID"  # set for jobs that should end with their launcher
# Variables by which torchrun, Lightning, Slurm and MPI tell a process its rank: a job must find its own.
RANK_VARIABLES = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMI_RANK", "PMI_SIZE"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_JOB_NAME", "SLURM_STEP_ID"),
)
RANK_PREFIXES = ("TORCHELASTIC_", "OMPI_COMM_WORLD_", "PL_")


@dataclass(frozen=True)
class Job:
    """What a job process needs to know."""

    index: int
    label: str
    overrides: list[str]  # every one with a single value; relative paths are relative to ``cwd``
    folder: str  # absolute
    cwd: str
    parent_run_id: str | None = None
    resume: bool = False  # go on from the folder's newest checkpoint, if there is one

    def write(self) -> Path:
        """Write job.json into the job's folder, passwords masked, and return its path."""
        file = Path(self.folder) / JOB
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, asdict(replace(self, overrides=[mask(text) for text in self.overrides])))
        return file

    def config(self) -> Any:
        """Return the checked configuration; raises UserError."""
        config = load(self.overrides)
        return with_output(config, Path(self.cwd, config.paths.output))

    @staticmethod
    def read(file: Path) -> Job:
        """Read a job.json; raises UserError."""
        try:
            return Job(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{file} is no job file: {error}") from error


def job_command(file: Path) -> list[str]:
    """Return the command that runs a job file."""
    return [sys.executable, "-P", "-u", "-m", "k3lab.launch.job", str(file)]


def job_environment(config: Any) -> dict[str, str]:
    """Return this process's environment for a job: without ranks, with a password that files must not hold."""
    kept = {k: v for k, v in os.environ.items() if k not in RANK_VARIABLES and not k.startswith(RANK_PREFIXES)}
    uri = getattr(config.tracking, "uri", None)
    if uri and mask(uri) != uri:
        kept["MLFLOW_TRACKING_URI"] = uri
    return kept


def run_job(job: Job) -> int:
    """Train in this process; returns the exit code. Raises UserError."""
    os.chdir(job.cwd)
    config = job.config()
    for line in config.warnings():
        print(f"k3lab: warning: {line}", file=sys.stderr)
    from k3lab.training.run import run_training

    return run_training(config, Path(job.folder), job.parent_run_id, job.resume)


def end_with_launcher() -> None:
    """Ask the system for a SIGTERM, which saves a checkpoint, when the launcher dies: no job trains on unseen."""
    launcher = os.environ.pop(PARENT, None)  # not for the processes that this one starts
    if launcher is None or sys.platform != "linux":
        return
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
    if os.getppid() != int(launcher):  # it died before the line above
        os.kill(os.getpid(), signal.SIGTERM)


def main(arguments: list[str]) -> int:
    """Run the job file that is the only argument."""
    end_with_launcher()
    try:
        if len(arguments) != 1:
            raise UserError("usage: python -m k3lab.launch.job FOLDER/job.json")
        return run_job(Job.read(Path(arguments[0])))
    except UserError as error:
        print(f"k3lab: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
