"""The MLflow store: its address, and its creation, once, however many runs start at the same moment."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from filelock import FileLock

from k3lab.config.errors import UserError
from k3lab.config.schema import mask

SCHEMES = ("sqlite", "postgresql", "mysql", "mssql", "http", "https", "databricks")
HTTP = re.compile(r"https?://([^/@]*@)?([^\s/@:?\[\]]+|\[[\da-f:]+\])(:\d+)?([/?]\S*)?")  # the address needs a host
DATABASE = "mlflow.db"
LOCK_S = 20  # the first run of a store migrates an empty database: 2 to 5 s
# One request must not outlast the courier's patience; it repeats by itself, so MLflow must not.
HTTP_TIMEOUT_S = 8


def quiet_environment() -> dict[str, str]:
    """Return the variables under which MLflow keeps to itself: no telemetry, no banner, no retries of its own."""
    return {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(HTTP_TIMEOUT_S),
        "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "GIT_PYTHON_REFRESH": "quiet",
    }


def default_uri(output: Path) -> str:
    """Return the address of the sqlite store inside ``paths.output``."""
    return f"sqlite:///{(output / DATABASE).absolute()}"


def check_uri(key: str, uri: str | None) -> None:
    """Raise ValueError unless ``uri`` is None or an address that MLflow can store runs at."""
    if uri is None:
        return
    scheme = re.match(r"([a-z]+)(\+\w+)?(://|$)", uri)
    bad = scheme is None or scheme.group(1) not in SCHEMES or uri in ("sqlite://", "sqlite:///", "sqlite:///:memory:")
    if bad or (uri.startswith("http") and not HTTP.fullmatch(mask(uri))):
        raise ValueError(
            f"{key}={mask(uri)}: must be sqlite:///FILE, http(s)://HOST:PORT, or the address of a "
            "postgresql, mysql or mssql database; null keeps an sqlite store in paths.output"
        )


def resolve_uri(uri: str | None, output: Path) -> str:
    """Return the absolute address of the store; a password that was masked in a saved configuration is restored.

    It comes from MLFLOW_TRACKING_URI if that is the same address otherwise, or is left to MLflow's
    MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD. Raises UserError if neither is set.
    """
    if uri is None:
        return default_uri(output)
    uri = absolute(uri)
    assert uri is not None
    if "***" not in uri:
        return uri
    given = os.environ.get("MLFLOW_TRACKING_URI", "")
    if given and mask(given) == uri:
        return given
    if uri.startswith("http") and os.environ.get("MLFLOW_TRACKING_PASSWORD"):
        return re.sub(r"://[^/@]*@", "://", uri)
    raise UserError(
        f"tracking.uri={uri}: its password was masked when the configuration was saved; set MLFLOW_TRACKING_URI "
        "to the whole address, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
    )


def absolute(uri: str | None) -> str | None:
    """Return an address with the file of an sqlite store made absolute; others as they are."""
    if uri is None or (file := sqlite_file(uri)) is None:
        return uri
    return f"{uri.partition(':///')[0]}:///{file}{''.join(uri.partition('?')[1:])}"


def sqlite_file(uri: str) -> Path | None:
    """Return the absolute path of an sqlite store's file, None for another kind of store."""
    match = re.match(r"sqlite(\+\w+)?:///(.*?)(\?|$)", uri)
    return Path(match.group(2)).absolute() if match else None


def scrub(text: str, uri: str) -> str:
    """Return a message as one line in which neither the address nor anything else shows the uri's secrets."""
    text = " ".join(text.split()).replace(uri, mask(uri))
    for secret in re.findall(r"://[^:/@]*:(.+)@", uri) + re.findall(r"(?:password|token|secret|key)=([^&]+)", uri):
        text = text.replace(secret, "***")
    return text


def import_mlflow() -> Any:
    """Import MLflow with its telemetry and chatter off (it reads the environment when it is imported)."""
    os.environ.update(quiet_environment())
    import mlflow

    for name in ("mlflow", "alembic", "urllib3"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return mlflow


def ensure_store(uri: str) -> Any:
    """Return a client of the store at ``uri``, after creating it if it is an sqlite file that does not exist.

    The file appears complete: it is migrated under a temporary name, under a lock, and renamed.
    Raises UserError if the folder cannot be written or the file is no store of this MLflow version.
    """
    mlflow = import_mlflow()
    file = sqlite_file(uri)
    if file is None:
        return mlflow.MlflowClient(tracking_uri=uri)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{file}.lock", timeout=LOCK_S):
            if not file.exists():
                _create(mlflow, file)
            client = mlflow.MlflowClient(tracking_uri=uri)
            client.get_experiment("0")  # connects, and compares the version of the schema
            follow(file)
    except OSError as error:
        if isinstance(error, TimeoutError):
            raise
        raise UserError(f"the run store {file} cannot be written: {error.strerror or error}") from error
    except Exception as error:
        if (why := _unusable(error)) is None:
            raise
        raise UserError(f"{file} {why}") from error
    return client


def follow(file: Path) -> None:
    """Let a store that was moved or copied with its artifacts know where these are now.

    MLflow keeps absolute addresses: without this a run that goes on would write its artifacts to the old place,
    and the dashboard would look for them there. Only artifacts that do lie beside the store are followed.
    """
    if file.name != DATABASE:
        return
    here = file.parent / "artifacts"
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=rw", uri=True, timeout=LOCK_S)) as store, store:
        for experiment, old in store.execute("SELECT experiment_id, artifact_location FROM experiments").fetchall():
            name = str(old).rpartition("/artifacts/")[2]
            new = f"{here.as_uri()}/{name}"
            if old != new and str(old).startswith("file:") and "/" not in name and (here / unquote(name)).is_dir():
                store.execute("UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?", (new, experiment))
                store.execute(
                    "UPDATE runs SET artifact_uri = ? || substr(artifact_uri, ?) "
                    "WHERE experiment_id = ? AND substr(artifact_uri, 1, ?) = ?",
                    (new, len(old) + 1, experiment, len(old) + 1, f"{old}/"),
                )


def ensure_experiment(client: Any, name: str, artifacts: Path | None) -> str:
    """Return the id of an experiment, created on first use; ``artifacts`` is a local folder for its files.

    Raises UserError if the experiment was deleted.
    """
    found = client.get_experiment_by_name(name)
    if found is None:
        place = None if artifacts is None else (artifacts / quote(name, safe="")).absolute().as_uri()
        try:
            return str(client.create_experiment(name, artifact_location=place))
        except Exception:  # another run was faster
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        raise UserError(
            f"tracking.experiment={name}: this experiment was deleted from the store; restore it "
            f"(mlflow experiments restore --experiment-id {found.experiment_id}) or choose another name"
        )
    return str(found.experiment_id)


def _create(mlflow: Any, file: Path) -> None:
    temporary = file.with_name(f".tmp-{file.name}")
    temporary.unlink(missing_ok=True)
    try:
        mlflow.MlflowClient(tracking_uri=f"sqlite:///{temporary}").get_experiment("0")
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def _unusable(error: Exception) -> str | None:
    text = str(error).lower()
    if "file is not a database" in text or "unsupported file format" in text:
        return "is no sqlite database"
    if "out-of-date database schema" in text or "can't locate revision" in text:
        return "was written by another version of MLflow: back it up and run `mlflow db upgrade` on it"
    if "unable to open database file" in text or "readonly database" in text:
        return "cannot be opened for writing"
    return None
