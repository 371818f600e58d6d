"""`k3lab train` without -m: one run in this process, new or gone on with."""

from __future__ import annotations

import secrets
import sys
import time
from pathlib import Path
from typing import Any

from k3lab.config.errors import UserError
from k3lab.config.load import load, load_folder
from k3lab.config.overrides import Override, parse
from k3lab.config.schema import Config

# With resume=FOLDER the folder's own configuration counts; these say how long to go on and who watches.
RESUMABLE = ("trainer.max_steps", "trainer.display", "trainer.log_every", "tracking.uri", "paths.output")


def run_single(overrides: list[str]) -> int:
    """Train under Hydra overrides and return the exit code; the last line on standard output is the folder."""
    parsed = [parse(text) for text in overrides]
    folder = _resume_folder(parsed)
    # Settings are checked before torch is there; loaded again after it, they are the components' real classes.
    _load(overrides, parsed, folder)
    import torch  # noqa: F401

    config = _load(overrides, parsed, folder)
    for line in config.warnings():
        print(f"k3lab: warning: {line}", file=sys.stderr)
    if folder is None and config.resume == "auto":
        from k3lab.training.resume import find_unfinished

        folder = find_unfinished(Path(config.paths.output), config.fingerprint())
        if folder is not None:
            print(f"k3lab: going on with {folder}", file=sys.stderr)
            config = load_folder(folder, _kept(parsed))
    from k3lab.training.run import run_training

    resume = folder is not None
    folder = folder or new_folder(Path(config.paths.output), config.name or "train")
    code = run_training(config, folder, resume=resume)
    print(folder, flush=True)
    return code


def new_folder(output: Path, name: str, prefix: str = "") -> Path:
    """Return the path of a folder that nobody else has: by second and six random letters; it is not made yet."""
    return output / name / f"{prefix}{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def _resume_folder(parsed: list[Override]) -> Path | None:
    given = [o.value for o in parsed if o.key == "resume"]
    if not given or given[-1] in (None, "auto"):
        return None
    from k3lab.training.resume import require_run

    return require_run(str(given[-1]))


def _load(overrides: list[str], parsed: list[Override], folder: Path | None) -> Config:
    if folder is None:
        return load(overrides)
    config = load_folder(folder, _kept(parsed))
    for override in parsed:
        if override.key not in (*RESUMABLE, "resume") and not _same(config, override):
            raise UserError(
                f"{override.text}: a resumed run keeps its configuration; only {', '.join(RESUMABLE)} may change"
            )
    return config


def _kept(parsed: list[Override]) -> list[str]:
    return [o.plain() for o in parsed if o.key in RESUMABLE]


def _same(config: Config, override: Override) -> bool:
    """Return whether an override repeats what the run's configuration says already."""
    found: Any = config
    for part in override.key.split("."):
        found = found.get(part) if isinstance(found, dict) else getattr(found, part, None)
    if override.key == "mixer":
        return list(found) == (override.value if isinstance(override.value, list) else [override.value])
    return bool(getattr(found, "name", found) == override.value)
