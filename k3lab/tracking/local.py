"""What a run leaves in its own folder, whatever becomes of any server: metrics.jsonl and summary.json.

A line of metrics.jsonl is ``{"step": 12, "time": 1767225600.25, "train/loss": 3.5, ...}``; time is in seconds of
the Unix clock. NaN is written as null and an infinity as 1e999, which every JSON parser accepts.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
_NAME = re.compile(r"[\w./: -]{1,250}")  # what MLflow accepts; \w is wider, but names are ASCII


# What others rely on in a summary.json.
_TYPES: dict[str, Any] = {
    "status": str,
    "run_id": (str, type(None)),
    "steps": int,
    "wall_s": float,
    "started": float,
    "metrics": dict,
    "process": dict,
    "jobs": list,
    "fingerprint": str,
}


class Line(NamedTuple):
    """One call of ``log``: the metrics of one step."""

    step: int
    time: float
    metrics: dict[str, float]


class MetricsFile:
    """Appends to metrics.jsonl; every (name, step) is written once, also across resumes."""

    def __init__(self, folder: Path, start_step: int = 0) -> None:
        self.path = folder / METRICS
        self._known: dict[str, str] = {}  # name -> its JSON form
        self._kept = _keep_until(self.path, start_step)  # names already written at start_step
        self._start = start_step
        self._handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, metrics: dict[str, float], step: int, time: float) -> None:
        """Write one line at once; raises ValueError for a bad name, OSError when the disk refuses."""
        parts = [f'{{"step": {int(step)}, "time": {time:.3f}']
        for name, value in metrics.items():
            if step == self._start and name in self._kept:
                continue
            parts.append(f"{self._known.get(name) or self._learn(name)}: {_number(value)}")
        if len(parts) > 1:
            self._write((", ".join(parts) + "}\n").encode())

    def sync(self) -> None:
        """Force what was written to the disk."""
        os.fsync(self._handle)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def _learn(self, name: str) -> str:
        if name in ("step", "time") or not name.isascii() or not _NAME.fullmatch(name):
            raise ValueError(f"metric name '{name}': must be 1 to 250 letters, digits, or any of '_-./: '")
        self._known[name] = json.dumps(name)
        return self._known[name]

    def _write(self, line: bytes) -> None:
        before = os.fstat(self._handle).st_size
        try:
            done = 0
            while done < len(line):
                done += os.write(self._handle, line[done:])
        except OSError:
            os.ftruncate(self._handle, before)  # half a line would spoil the next one
            raise


def parse(raw: bytes) -> Line | None:
    """Return one line of metrics.jsonl, None if it is damaged (a process was killed as it wrote)."""
    try:
        values = json.loads(raw)
        step, time = int(values.pop("step")), float(values.pop("time"))
        return Line(step, time, {str(k): math.nan if v is None else float(v) for k, v in values.items()})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def read_lines(folder: Path) -> Iterator[Line]:
    """Yield the complete lines of a run's metrics.jsonl; nothing if there is none."""
    path = folder / METRICS
    if path.is_file():
        with path.open("rb") as lines:
            for raw in lines:
                if (line := parse(raw)) is not None:
                    yield line


def read_metrics(folder: Path) -> dict[str, dict[int, float]]:
    """Return a run's metrics as name → step → value."""
    found: dict[str, dict[int, float]] = {}
    for line in read_lines(folder):
        for name, value in line.metrics.items():
            found.setdefault(name, {})[line.step] = value
    return found


def last_metrics(folder: Path, tail: int = 1 << 17) -> tuple[int, dict[str, float]]:
    """Return the newest step and the newest value of every metric in the last ``tail`` bytes of metrics.jsonl."""
    path, step, found = folder / METRICS, 0, {}
    if path.is_file():
        with path.open("rb") as lines:
            lines.seek(max(0, path.stat().st_size - tail))
            for raw in lines:  # the first one may be cut: parse returns None
                if (line := parse(raw)) is not None:
                    step = max(step, line.step)
                    found.update(line.metrics)
    return step, found


def write_json(path: Path, value: Any) -> None:
    """Write JSON under a temporary name, force it to the disk and rename it; NaN and infinities become null."""
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as out:
            json.dump(_finite(value), out, indent=1, allow_nan=False)
            out.write("\n")
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Write a run's summary.json atomically."""
    write_json(folder / SUMMARY, summary)


def read_summary(folder: Path) -> dict[str, Any] | None:
    """Return a run's or a sweep's summary.json, None if there is none or it is damaged.

    Values of a wrong type, of a file that somebody edited, are left out: none of them is worth a failure.
    """
    try:
        found = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    return {key: value for key, value in found.items() if _fits(value, _TYPES.get(key, object))}


def _fits(value: Any, kind: Any) -> bool:
    if kind in (int, float):  # JSON has one kind of number, and True is none
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, kind)


def _number(value: float) -> str:
    value = float(value)
    if math.isfinite(value):
        return repr(value)
    return "null" if math.isnan(value) else "1e999" if value > 0 else "-1e999"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _keep_until(path: Path, start_step: int) -> set[str]:
    """Drop the lines past ``start_step``, which will be written again; return the names found at that step."""
    names: set[str] = set()
    if not path.is_file():
        return names
    # A new file rather than a shorter one: whoever still reads the old one must not see other steps in it.
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    with path.open("rb") as lines, temporary.open("wb") as out:
        for raw in lines:
            line = parse(raw)
            if line is None or line.step > start_step:
                continue
            out.write(raw)
            if line.step == start_step:
                names.update(line.metrics)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(path)
    return names
