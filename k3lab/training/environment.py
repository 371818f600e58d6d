"""What a run ran on: versions, device and commit. Never values of environment variables."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import k3lab


def environment(device: torch.device | None = None) -> dict[str, Any]:
    """Return versions, the device's name and the commit of k3lab's checkout (None outside a checkout)."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": _version("lightning"),
        "k3lab": _version("k3lab"),
        "platform": platform.platform(),
        "device": device_name(device or torch.device("cpu")),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda,
        "git_commit": git_commit(Path(k3lab.__file__).resolve().parent),
    }


def device_name(device: torch.device) -> str:
    """Return a GPU's product name, or the processor's for a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def git_commit(package: Path) -> str | None:
    """Return the commit of the checkout that ``package`` lies in, with ``-dirty`` after changes, else None.

    A package installed into an environment inside somebody else's checkout has no commit of its own.
    """
    top = _git(package, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != package.parent:
        return None
    return _git(package, "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
