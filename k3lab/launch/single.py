"""One training in this process: a new run, or one that goes on."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from k3lab.config.errors import UserError
from k3lab.config.load import load, load_folder
from k3lab.config.overrides import parse
from k3lab.launch.folders import output_of, run_folder, with_output
from k3lab.launch.outcome import print_outcome

# What may change when a run goes on: it stays the same experiment.
MAY_CHANGE = (
    *("trainer.max_steps", "trainer.display", "trainer.workers", "trainer.devices"),
    *("checkpoint.every", "checkpoint.keep"),
)
NOT_COMPARED = ("resume", "name", "paths", "tracking", "launch", "sweep")


def run_single(overrides: list[str]) -> int:
    """Train one model and print its folder as the last line; returns the exit code. Raises UserError."""
    resume, rest = split_resume(overrides)
    if resume is None or resume == "auto":
        config = load(rest)
        config = with_output(config, Path(config.paths.output))
        folder = _unfinished(config) if resume == "auto" else None
        going_on, folder = folder is not None, folder or run_folder(config)
    else:
        folder, going_on = _require_run(resume), True
        config = _config_of(folder, rest)
    config.require_inputs()
    for line in config.warnings():
        print(f"k3lab: warning: {line}", file=sys.stderr)
    from k3lab.training.run import run_training

    code = run_training(config, folder, resume=going_on)
    if code == 0:
        print_outcome(folder)
    sys.stderr.flush()
    print(folder, flush=True)
    return code


def split_resume(overrides: list[str]) -> tuple[str | None, list[str]]:
    """Return the value of ``resume=`` and the other overrides."""
    resume, rest = None, []
    for text in overrides:
        if re.match(r"\+*resume=", text):
            value = parse(text).value
            resume = None if value is None else str(value)
            if resume == "":
                raise UserError("resume=: must be a run folder, auto, or null")
        else:
            rest.append(text)
    return resume, rest


def _unfinished(config: Any) -> Path | None:
    from k3lab.training.resume import find_unfinished

    return find_unfinished(Path(config.paths.output), config.fingerprint())


def _require_run(value: str) -> Path:
    from k3lab.training.resume import require_run

    return require_run(value)


def _config_of(folder: Path, overrides: list[str]) -> Any:
    """Return the configuration of a run that goes on; raises UserError if it would be another experiment."""
    before, config = load_folder(folder), load_folder(folder, overrides)
    old, new = _leaves(before.to_dict()), _leaves(config.to_dict())
    for key in dict.fromkeys([*new, *old]):
        if key.split(".")[0] in NOT_COMPARED or key in MAY_CHANGE or old.get(key) == new.get(key):
            continue
        raise UserError(
            f"{key}={new.get(key)}: a run goes on as it began, with {old.get(key)}; "
            f"what may change: {', '.join(MAY_CHANGE)}"
        )
    return with_output(config, output_of(folder, config.paths.output))


def _leaves(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= _leaves(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found
