"""What a run ran on: versions, machine, devices, commit, command. No value of an environment variable."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from k3lab.config.schema import mask

PACKAGES = ("k3lab", "torch", "lightning", "triton", "hydra-core", "mlflow", "numpy")


def describe() -> dict[str, str]:
    """Return versions, machine and commit as short strings; devices too if torch has been imported."""
    found = {"python": platform.python_version(), "platform": platform.platform(), "host": platform.node()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    found["cpu"] = f"{_cpu()}, {_cores()} cores"
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        found["gpu"] = ", ".join(f"{names.count(n)} × {n}" for n in dict.fromkeys(names))
        found["cuda"] = str(torch.version.cuda)
    if commit := git_commit(Path(__file__).parent, tracked=True) or git_commit(Path.cwd()):
        found["git_commit"] = commit
    return found


def command(overrides: list[str] | None = None) -> str:
    """Return the command line that started this process, or ``k3lab train`` with overrides; passwords masked."""
    words = ["k3lab", *sys.argv[1:]] if overrides is None else ["k3lab", "train", *overrides]
    return shlex.join(mask(word) for word in words)


@cache
def git_commit(folder: Path, tracked: bool = False) -> str | None:
    """Return the commit of the checkout around ``folder``, with ``-dirty`` after changes, else None.

    ``tracked``: only if the folder's files belong to that checkout (an environment inside one does not).
    """
    if tracked and not _git(folder, "ls-files", "--", "."):
        return None
    head = _git(folder, "rev-parse", "HEAD")
    if not head:
        return None
    return f"{head}-dirty" if _git(folder, "status", "--porcelain", "--untracked-files=no") else head


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
