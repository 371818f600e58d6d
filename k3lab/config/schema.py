"""The typed form of a whole configuration: what every run is made of, frozen once it has been checked."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import yaml

from k3lab.config import checks


@dataclass(frozen=True)
class PathsSettings:
    """Where a run may write."""

    output: str = "runs"  # run folders, the MLflow store and its artifacts live here and nowhere else

    def __post_init__(self) -> None:
        if not self.output.strip() or "\0" in self.output:
            raise ValueError(f"output={self.output!r}: must be the path of a folder")


@dataclass(frozen=True)
class CheckpointSettings:
    """How often a run is saved."""

    every: int = 100  # optimizer steps between checkpoints; one more is written at the end
    keep: int = 2  # newest checkpoints that stay on disk

    def __post_init__(self) -> None:
        checks.positive("every", self.every)
        checks.positive("keep", self.keep)


@dataclass(frozen=True)
class CoreSettings:
    """The keys that belong to no group."""

    seed: int = 0
    name: str | None = None  # folder and MLflow experiment of the run; an experiment sets its own
    resume: str | None = None  # a run folder, or auto: the newest unfinished run of this configuration
    paths: PathsSettings = field(default_factory=PathsSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)

    def __post_init__(self) -> None:
        checks.in_range("seed", self.seed, 0, 2**63 - 1)
        if self.name is not None and not re.fullmatch(r"(?!\.)[\w.-]{1,100}", self.name):
            raise ValueError(f"name={self.name}: must be letters, digits, '.', '_' and '-', no '.' first")


# What a run is, as opposed to where it writes, who tracks it and who launches it.
_NOT_IDENTITY = ("resume", "name", "paths", "tracking", "launch", "sweep")


@dataclass(frozen=True)
class Config:
    """One checked configuration; every group's settings under the group's name."""

    seed: int
    name: str | None
    resume: str | None
    paths: PathsSettings
    checkpoint: CheckpointSettings
    decay: Any
    router: Any
    residual: Any
    mixer: dict[str, Any]
    ffn: Any
    model: Any
    data: Any
    optim: Any
    schedule: Any
    strategy: Any
    trainer: Any
    diagnostics: Any
    tracking: Any
    launch: Any
    sweep: Any

    def to_dict(self) -> dict[str, Any]:
        """Return nested plain values, with any password in the tracking address masked."""
        plain = asdict(self)
        tracking = plain["tracking"]
        if isinstance(tracking.get("uri"), str):
            tracking["uri"] = mask(tracking["uri"])
        return plain

    def to_yaml(self) -> str:
        """Return the resolved configuration as YAML, in the order of the schema."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)

    def fingerprint(self) -> str:
        """Return a hash of what defines the experiment: equal for two runs that should give the same bits."""
        plain = {k: v for k, v in self.to_dict().items() if k not in _NOT_IDENTITY}
        plain["trainer"].pop("display", None)
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]

    def check(self) -> None:
        """Let every component check itself against the others; raises ValueError."""
        for part in self.parts():
            if hasattr(part, "check"):
                part.check(self)

    def require_inputs(self) -> None:
        """Let every component look for the files it will read; raises UserError."""
        for part in self.parts():
            if hasattr(part, "require_inputs"):
                part.require_inputs()

    def warnings(self) -> list[str]:
        """Return the components' one-line warnings."""
        return [line for part in self.parts() if hasattr(part, "warnings") for line in part.warnings(self)]

    def parts(self) -> list[Any]:
        """Return the settings of every group."""
        found: list[Any] = []
        for f in fields(self):
            value = getattr(self, f.name)
            found += list(value.values()) if f.name == "mixer" else [value]
        return found


def mask(uri: str) -> str:
    """Return an address with its password, and any secret in its query, replaced by ``***``."""
    uri = re.sub(r"(://[^:/@]*):.*@", r"\1:***@", uri)
    return re.sub(r"([?&][^=&]*(?:password|token|secret|key)[^=&]*=)[^&]*", r"\1***", uri, flags=re.IGNORECASE)
