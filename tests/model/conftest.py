"""Small configurations, built from the settings classes alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from k3lab.config.registry import conf_dir, settings_class


def compose(mixers: tuple[str, ...] = ("kda", "mla"), preset: str | None = None, **changes: Any) -> SimpleNamespace:
    """A configuration of the model's groups: ``group=name``, ``group=(name, {key: value})``; model sizes as keys."""
    sizes = {"hidden_size": 16, "layers": 3, "heads": 2}
    if preset is not None:
        sizes = yaml.safe_load((conf_dir() / "model" / f"{preset}.yaml").read_text(encoding="utf-8"))
    groups = {"decay": "lower_bound", "router": "quantile", "residual": "block_attnres", "ffn": "latent_moe"}
    groups.update({key: changes.pop(key) for key in list(changes) if key in groups})
    config = SimpleNamespace(data=SimpleNamespace(seq_len=32))
    for group, choice in groups.items():
        name, settings = choice if isinstance(choice, tuple) else (choice, {})
        setattr(config, group, settings_class(group, name)(**settings))
    options = [mixer if isinstance(mixer, tuple) else (mixer, {}) for mixer in mixers]
    config.mixer = {name: settings_class("mixer", name)(**settings) for name, settings in options}
    config.model = settings_class("model", "nano")(**{**sizes, **changes})
    for part in (config.model, config.decay, config.ffn, *config.mixer.values()):
        if hasattr(part, "check"):
            part.check(config)
    return config


@pytest.fixture(name="compose")
def compose_fixture() -> Any:
    return compose
