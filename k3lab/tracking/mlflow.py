"""MLflow as the place where runs are compared: nested runs, parameters, tags, batched metrics, artifacts.

It shares its name with the package it talks to, which is imported by k3lab.tracking.store alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3lab.config import checks
from k3lab.config.errors import UserError
from k3lab.config.schema import mask
from k3lab.tracking.base import Backend, Point, RunRequest, Stored
from k3lab.tracking.store import absolute, check_uri, ensure_experiment, ensure_store, resolve_uri, scrub

STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
FOLDER_TAG = "k3lab.folder"
MAX_PARAM = 6000  # MLflow's longest parameter value
MAX_TAG = 5000
MAX_PARAMS_A_CALL = 100


@dataclass(frozen=True)
class MLflowSettings:
    """Where runs are stored."""

    name: str = "mlflow"
    uri: str | None = None  # None: sqlite in paths.output
    experiment: str | None = None  # None: the run's name, or train
    system_metrics: bool = False  # log processor, memory and GPU use under system/
    system_every: float = 10.0  # seconds between samples of them

    def __post_init__(self) -> None:
        checks.positive("system_every", self.system_every)
        if self.experiment is not None and not 0 < len(self.experiment.strip()) <= 250:
            raise ValueError(f"experiment={self.experiment}: must have 1 to 250 characters")
        check_uri("uri", self.uri)
        # Absolute, so that a saved configuration means the same store from any folder.
        object.__setattr__(self, "uri", absolute(self.uri))


class MLflow(Backend):
    """A client of one store."""

    def __init__(self, settings: Any, output: Path) -> None:
        super().__init__(settings, output)
        self.uri = resolve_uri(settings.uri, output)
        self._client: Any = None

    @property
    def client(self) -> Any:
        if self._client is None:
            self._client = ensure_store(self.uri)
        return self._client

    def open(self, request: RunRequest) -> str:
        # A server keeps artifacts itself; with a database they lie beside the run folders.
        artifacts = None if self.uri.startswith(("http", "databricks")) else self.output / "artifacts"
        experiment = ensure_experiment(self.client, request.experiment, artifacts)
        run = self._find(request, experiment)
        tags = {FOLDER_TAG: request.label} | {k: v[:MAX_TAG] for k, v in request.tags.items()}
        if run is None:
            if request.parent_run_id:
                tags["mlflow.parentRunId"] = request.parent_run_id
            run = self.client.create_run(experiment, tags=tags, run_name=request.run_name)
        elif run.info.status != "RUNNING":
            self.client.update_run(run.info.run_id, status="RUNNING")
        self._params(run, request.params)
        return str(run.info.run_id)

    def stored(self, run_id: str, after: int) -> Stored:
        data = self.client.get_run(run_id).data
        newest = {m.key: m.step for m in getattr(data, "_metric_objs", [])}
        latest, past = {}, {}
        for name in data.metrics:
            if newest.get(name, after + 1) > after:
                steps = {m.step for m in self.client.get_metric_history(run_id, name)}
                past[name] = {s for s in steps if s > after}
                latest[name] = max(steps)
            else:
                latest[name] = newest[name]
        return Stored(latest, past)

    def log(self, run_id: str, points: list[Point]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(p.name, p.value, round(p.time * 1000), p.step) for p in points]
        self.client.log_batch(run_id, metrics=metrics)

    def artifact(self, run_id: str, path: str, folder: str | None) -> None:
        if Path(path).is_dir():
            self.client.log_artifacts(run_id, path, folder)
        else:
            self.client.log_artifact(run_id, path, folder)

    def finish(self, run_id: str, status: str) -> None:
        self.client.set_terminated(run_id, STATUS[status])

    def transient(self, error: Exception) -> bool:
        status = getattr(error, "get_http_status_code", None)
        if status is None:
            return not isinstance(error, (UserError, ImportError, TypeError, ValueError))
        code = int(status())
        return code >= 500 or code in (408, 425, 429)

    def describe(self, error: Exception) -> str:
        """Return where and why, the latter by the innermost exception: clients wrap them in pages of text."""
        cause: BaseException = error
        while (inner := cause.__cause__ or cause.__context__) is not None:
            cause = inner
        return scrub(f"{mask(self.uri)}: {type(cause).__name__}: {cause}", self.uri)[:400]

    def _find(self, request: RunRequest, experiment: str) -> Any:
        """Return the run to continue: by id, else by folder (its creation may have gone unanswered), else None."""
        if request.run_id:
            try:
                run = self.client.get_run(request.run_id)
                if run.info.lifecycle_stage == "active":
                    return run
            except Exception as error:
                if self.transient(error):
                    raise
        found = self.client.search_runs([experiment], f"tags.`{FOLDER_TAG}` = '{request.label}'", max_results=1)
        return found[0] if found else None

    def _params(self, run: Any, params: dict[str, str]) -> None:
        """Log the parameters that the run lacks: they cannot be changed, and a resumed run keeps its first ones."""
        from mlflow.entities import Param

        missing = [Param(k, _fit(v)) for k, v in params.items() if k not in run.data.params]
        for first in range(0, len(missing), MAX_PARAMS_A_CALL):
            self.client.log_batch(run.info.run_id, params=missing[first : first + MAX_PARAMS_A_CALL])


def _fit(value: str) -> str:
    """Return a value that MLflow can hold: never a piece of it that could be mistaken for the whole."""
    if len(value) <= MAX_PARAM:
        return value
    return f"{len(value)} characters, sha256 {hashlib.sha256(value.encode()).hexdigest()}; see config.yaml"
