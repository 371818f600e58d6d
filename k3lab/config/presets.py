"""Presets: settings that options of other groups take under a model or an experiment.

``presets:`` in conf/model/NAME.yaml or conf/experiment/NAME.yaml maps group → option → {key: value}. They hold
wherever the option is the chosen one, so that an axis of a sweep may cross options with different keys. A model's
presets choose as well: their first option (for mixers, all of them) is the group's, unless the command line or the
experiment chooses one.

What comes later wins: an option's own YAML, the model's presets, the experiment's presets, the experiment's keys,
the command line.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from omegaconf import DictConfig, OmegaConf

from k3lab.config.overrides import Override
from k3lab.config.registry import MULTI, conf_dir

Presets = dict[str, dict[str, dict[str, Any]]]  # group → option → key → value


def take(raw: DictConfig) -> tuple[Presets, Presets]:
    """Remove the presets of the model and of the experiment from a composed configuration and return them."""
    return _pop(raw.get("model")), _pop(raw)


def _pop(owner: Any) -> Presets:
    found = owner.pop("presets", None) if isinstance(owner, DictConfig) else None
    plain: Any = OmegaConf.to_container(found) if isinstance(found, DictConfig) else {}
    return plain


def experiment(chosen: Iterable[Override]) -> DictConfig:
    """Return the file of the experiment that the command line names, as it is; empty without one."""
    for override in chosen:
        if override.key == "experiment" and override.value is not None:
            file = OmegaConf.load(conf_dir() / "experiment" / f"{override.value}.yaml")
            assert isinstance(file, DictConfig)
            return file
    return OmegaConf.create()


def choices(presets: Presets, chosen: Iterable[Override], own: DictConfig) -> list[str]:
    """Return the overrides by which a model's presets choose, for the groups where nobody else does."""
    taken = {o.key for o in chosen}
    for entry in own.get("defaults") or []:
        taken |= {str(key).split("/")[-1] for key in entry} if isinstance(entry, DictConfig) else set()
    return [
        f"{group}=[{','.join(options)}]" if group in MULTI else f"{group}={next(iter(options))}"
        for group, options in presets.items()
        if group not in taken
    ]


def apply(raw: DictConfig, presets: Presets, own: DictConfig) -> None:
    """Set the presets of the options that are chosen, except for keys that the experiment itself sets."""
    for group, options in presets.items():
        for option, settings in options.items():
            path = f"{group}.{option}" if group in MULTI else group
            node = OmegaConf.select(raw, path)
            if not isinstance(node, DictConfig) or node.get("name") != option:
                continue
            for key, value in (settings or {}).items():
                if OmegaConf.select(own, f"{path}.{key}", default=own) is own:
                    node[key] = value
