"""The command line of a run that did not keep its own: the shortest one that gives its configuration."""

from __future__ import annotations

import shlex
from functools import cache

from k3lab.config.errors import UserError
from k3lab.config.load import load
from k3lab.config.registry import MULTI, groups, options
from k3lab.report.record import Run
from k3lab.tracking.run import flatten

_NOT_GIVEN = ("paths.", "tracking.", "launch.", "sweep.")


def reconstruct(run: Run) -> str | None:
    """Return ``k3lab train`` with the overrides by which the run's configuration differs from the defaults.

    None if it cannot be had from today's options: the run was made by other ones.
    """
    chosen = []
    for group in groups():
        if group in ("tracking", "launch", "sweep", "experiment"):
            continue
        if group in MULTI:
            names = [k.split(".")[1] for k in run.config if k.startswith(f"{group}.") and k.count(".") == 1]
            value = f"[{','.join(names)}]"
        else:
            value = run.config.get(group, "")
            if value not in options(group):
                return None
        chosen.append(f"{group}={value}")
    try:
        defaults, plain = _defaults(*chosen), _defaults()
    except UserError:
        return None
    given = [text for text in chosen if _differs(text, plain)]
    for key, value in run.config.items():
        inside = key.split(".")[0] in MULTI and key.count(".") == 1
        if key in groups() or inside or key == "resume" or key.startswith(_NOT_GIVEN):
            continue
        if key not in defaults:
            return None
        if value != defaults[key]:
            given.append(f"{key}={value}")
    return shlex.join(["k3lab", "train", *given])


@cache
def _defaults(*chosen: str) -> dict[str, str]:
    return flatten(load(chosen).to_dict())


def _differs(choice: str, plain: dict[str, str]) -> bool:
    group, value = choice.split("=", 1)
    if group not in MULTI:
        return plain.get(group) != value
    names = [k.split(".")[1] for k in plain if k.startswith(f"{group}.") and k.count(".") == 1]
    return value != f"[{','.join(names)}]"
