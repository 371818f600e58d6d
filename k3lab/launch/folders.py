"""Names of the folders that runs and sweeps are written to."""

from __future__ import annotations

import secrets
import string
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from k3lab.tracking.store import DATABASE

DEFAULT_NAME = "train"
_ALPHABET = string.ascii_lowercase + string.digits


def unique_id() -> str:
    """Return six random letters and digits; no seeded generator is touched."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(6))


def stamp() -> str:
    """Return the local time and a unique id, such as ``20260101-120000-x7k2p9``."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{unique_id()}"


def run_folder(config: Any) -> Path:
    """Return the folder of a new run; it is created when the run begins."""
    return Path(config.paths.output) / (config.name or DEFAULT_NAME) / stamp()


def sweep_folder(config: Any) -> Path:
    """Return the folder of a new sweep, which will hold a folder for every job."""
    return Path(config.paths.output) / (config.name or DEFAULT_NAME) / f"sweep-{stamp()}"


def with_output(config: Any, output: Path) -> Any:
    """Return the configuration with ``paths.output`` set to an absolute folder.

    Saved that way it means the same store from every working directory.
    """
    return replace(config, paths=replace(config.paths, output=str(output.absolute())))


def output_of(folder: Path, otherwise: str) -> Path:
    """Return the output folder that a run folder lies in, also after both were moved; else ``otherwise``."""
    for parent in list(folder.absolute().parents)[:3]:
        if (parent / DATABASE).is_file():
            return parent
    return Path(otherwise)
