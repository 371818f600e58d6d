"""Runs read from the MLflow store, which is never created nor written to."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from k3lab.config.errors import UserError
from k3lab.report.folders import read_config
from k3lab.report.record import Run
from k3lab.tracking import names
from k3lab.tracking.local import SUMMARY, read_summary
from k3lab.tracking.mlflow import FOLDER_TAG, STATUS
from k3lab.tracking.run import CONFIG
from k3lab.tracking.store import default_uri, ensure_store, resolve_uri, scrub, sqlite_file

PARENT_TAG = "mlflow.parentRunId"
COMMAND_TAG = "k3lab.command"
PAGE = 1000
_STATUS = {mlflow: ours for ours, mlflow in STATUS.items()}
# What is drawn over steps; of everything else the last value is enough.
_OVER_STEPS = re.compile(r"train/loss|val/.*|perf/.*|decay/(?!layer_).*|balance/(?!layer_).*|balance/layer_\d+/max_vio")


class Store:
    """A client that only reads."""

    def __init__(self, client: Any, uri: str) -> None:
        self.client, self.uri = client, uri
        self.experiments = {e.name: str(e.experiment_id) for e in client.search_experiments()}
        self._names = {number: name for name, number in self.experiments.items()}

    def runs(self, experiment: str) -> list[Any]:
        """Return every run of an experiment, deleted ones and those that group others included."""
        from mlflow.entities import ViewType

        found, token = [], None
        while True:
            page = self.client.search_runs(
                [self.experiments[experiment]], run_view_type=ViewType.ALL, max_results=PAGE, page_token=token
            )
            found += list(page)
            token = page.token
            if not token:
                return found

    def get(self, run_id: str) -> Any | None:
        """Return a run by its id, or by the beginning of it, None without one."""
        if not re.fullmatch(r"[0-9a-f]{6,32}", run_id):
            return None
        if len(run_id) == 32:
            try:
                return self.client.get_run(run_id)
            except Exception:  # MLflow has no kind of its own for "there is none"
                return None
        found = [r for name in self.experiments for r in self.runs(name) if r.info.run_id.startswith(run_id)]
        return found[0] if len(found) == 1 else None

    def experiment_name(self, run: Any) -> str:
        """Return the name of a run's experiment."""
        return self._names.get(str(run.info.experiment_id), "")

    def read(self, run: Any) -> Run:
        """Return a run as the store knows it: configuration and summary from its artifacts."""
        tags, info = run.data.tags, run.info
        config, summary = self._artifacts(run)
        environment = {k.removeprefix("environment."): v for k, v in tags.items() if k.startswith("environment.")}
        return Run(
            id=info.run_id,
            label=tags.get(FOLDER_TAG, info.run_id),
            status=_STATUS.get(info.status, "running"),
            config=config or dict(run.data.params),
            summary=summary,
            load=partial(self._metrics, run),
            environment={**environment, **{k: str(v) for k, v in (summary.get("environment") or {}).items()}},
            command=tags.get(COMMAND_TAG),
            experiment=self.experiment_name(run),
            parent=tags.get(PARENT_TAG),
            started=(info.start_time or 0) / 1000,
        )

    def _metrics(self, run: Any) -> dict[str, dict[int, float]]:
        found: dict[str, dict[int, float]] = {}
        for last in getattr(run.data, "_metric_objs", []):
            found[last.key] = {last.step: last.value}
            if last.step > 0 and _OVER_STEPS.fullmatch(last.key):
                history = self.client.get_metric_history(run.info.run_id, last.key)
                found[last.key] = {m.step: m.value for m in history}
        if names.TRAIN_LOSS not in found and not found:
            found = {name: {0: value} for name, value in run.data.metrics.items()}
        return found

    def _artifacts(self, run: Any) -> tuple[dict[str, str], dict[str, Any]]:
        place = urlparse(run.info.artifact_uri or "")
        if place.scheme in ("", "file"):
            folder = Path(unquote(place.path))
            return read_config(folder / CONFIG), read_summary(folder) or {}
        os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
        with tempfile.TemporaryDirectory() as temporary:
            for name in (CONFIG, SUMMARY):
                try:
                    self.client.download_artifacts(run.info.run_id, name, temporary)
                except Exception:  # as many kinds as there are kinds of artifact stores
                    continue
            return read_config(Path(temporary) / CONFIG), read_summary(Path(temporary)) or {}


def open_store(output: Path, uri: str | None) -> tuple[Store | None, str | None]:
    """Return the store, or None and why there is none; raises UserError if one was named that cannot be read."""
    address = default_uri(output) if uri is None else resolve_uri(uri, output)
    file = sqlite_file(address)
    if file is not None and not file.is_file():
        if uri is not None:
            raise UserError(f"--uri {uri}: there is no file {file}")
        return None, f"there is no run store {file}; the run folders were read instead"
    try:
        return Store(ensure_store(address), address), None
    except UserError as error:
        why = str(error)
    except Exception as error:  # the kinds of MLflow, its database and its network are many
        why = f"the run store does not answer ({scrub(str(error), address)[:200]})"
    if uri is not None:
        raise UserError(why)
    return None, f"{why}; the run folders were read instead"


def children(runs: list[Any], parent: str) -> Iterator[Any]:
    """Yield the runs that a run groups."""
    for run in runs:
        if run.data.tags.get(PARENT_TAG) == parent:
            yield run


def is_deleted(run: Any) -> bool:
    """Return whether a run was deleted in MLflow."""
    return bool(run.info.lifecycle_stage == "deleted")
