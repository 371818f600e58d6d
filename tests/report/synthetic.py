"""Run folders made by a formula, so that every mean, difference and effect is known beforehand."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from k3lab.config.load import load
from k3lab.tracking import names
from k3lab.tracking.local import write_summary

OPTIONS = {
    "decay": ("softplus", "lower_bound"),
    "router": ("sign_bias", "quantile"),
    "residual": ("prenorm", "block_attnres"),
}
ENVIRONMENT = {"python": "3.11.7", "torch": "2.13.0", "cpu": "A processor, 2 cores", "device": "A processor"}


@cache
def _load(*overrides: str) -> Any:
    return load(overrides)


def write_run(
    folder: Path,
    overrides: Sequence[str] = (),
    final: float = 1.5,
    status: str = "finished",
    steps: int = 40,
    logged: int | None = None,
    extra: Callable[[int], dict[str, float]] = lambda step: {},
    noise: float = 0.0,
    summary: dict[str, Any] | None = None,
    name: str = "lab",
) -> Path:
    """Write a run whose validation loss ends at ``final``: metrics.jsonl, summary.json and config.yaml."""
    folder.mkdir(parents=True)
    output = folder.parents[2] if folder.parent.name.startswith("sweep-") else folder.parents[1]
    own = (f"name={name}", f"paths.output={output}", f"trainer.max_steps={steps}")
    # Composing takes a third of a second: what most runs differ in is put in afterwards.
    given = dict(o.split("=", 1) for o in overrides)
    seed, lr = int(given.pop("seed", 0)), given.pop("optim.lr", None)
    config = replace(_load(*own, *(f"{k}={v}" for k, v in given.items())), seed=seed)
    if lr is not None:
        config = replace(config, optim=replace(config.optim, lr=float(lr)))
    (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    done = steps if logged is None else logged
    wobble = random.Random(str(folder.name))
    lines = []
    for step in range(done + 1):
        fall = 4.0 * math.exp(-5 * step / steps)
        values: dict[str, float | None] = {}
        if step:
            values[names.TRAIN_LOSS] = final + fall + wobble.gauss(0, noise)
        if step and step % max(1, steps // 8) == 0:
            values[names.VAL_LOSS] = final + fall * (step < steps)
            values[names.VAL_BITS_PER_BYTE] = (final + fall * (step < steps)) / math.log(2)
            values[names.VAL_ACCURACY] = 1 / (1 + final)
            values[names.PERF_TOKENS_PER_S] = 6000.0
        values |= extra(step)
        clean = {k: None if v is not None and math.isnan(v) else v for k, v in values.items()}
        if clean:
            lines.append(json.dumps({"step": step, "time": 1.7e9 + step, **clean}))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    own_summary = {
        "status": status,
        "run_id": None,
        "steps": done,
        "max_steps": steps,
        "tokens": done * config.data.batch_size * config.data.seq_len,
        "wall_s": 12.5,
        "started": 1.7e9,
        "metrics": {},
        "environment": ENVIRONMENT,
        "fingerprint": config.fingerprint(),
    }
    write_summary(folder, {**own_summary, **(summary or {})})
    return folder


def factorial(
    root: Path,
    value: Callable[[tuple[bool, ...], int], float],
    seeds: int = 3,
    extra: Callable[[tuple[bool, ...], int, int], dict[str, float]] = lambda on, seed, step: {},
    skip: Iterable[tuple[tuple[bool, ...], int]] = (),
    **kwargs: Any,
) -> None:
    """Write the 2³ of the three techniques: ``value((decay, router, residual) on, seed)`` is the final loss."""
    keys = list(OPTIONS)
    for cell in range(2 ** len(keys)):
        on = tuple(bool(cell >> i & 1) for i in range(len(keys)))
        for seed in range(seeds):
            if (on, seed) in skip:
                continue
            overrides = [f"{k}={OPTIONS[k][flag]}" for k, flag in zip(keys, on, strict=True)]
            write_run(
                root / f"20260101-{cell:03d}{seed:03d}-abc",
                [*overrides, f"seed={seed}"],
                value(on, seed),
                extra=lambda step, on=on, seed=seed: extra(on, seed, step),
                **kwargs,
            )
