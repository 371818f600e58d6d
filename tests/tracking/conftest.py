"""A configuration that needs no component but those of the configuration itself, and a look into a store."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from k3lab.config.schema import mask
from k3lab.tracking.mlflow import MLflowSettings
from k3lab.tracking.store import default_uri, ensure_store


@dataclass
class FakeConfig:
    """What the tracker asks of a configuration."""

    paths: Any
    tracking: Any = field(default_factory=MLflowSettings)
    name: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        uri = getattr(self.tracking, "uri", None)
        tracking = {"name": self.tracking.name, "uri": uri and mask(uri)}
        return {"seed": 0, "decay": {"name": "lower_bound", "bound": -5.0}, "tracking": tracking, **self.extra}

    def to_yaml(self) -> str:
        return f"seed: 0\ntracking: {self.to_dict()['tracking']}\n"

    def fingerprint(self) -> str:
        return "0123456789abcdef"


@pytest.fixture
def make_config(tmp_path: Path) -> Any:
    def build(tracking: Any = None, **kwargs: Any) -> FakeConfig:
        return FakeConfig(SimpleNamespace(output=str(tmp_path)), tracking or MLflowSettings(), **kwargs)

    return build


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """Return a function that opens the store of the test's folder."""
    return lambda: ensure_store(default_uri(tmp_path))
