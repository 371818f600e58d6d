"""Which groups and options exist: read from the tree of conf/, matched by name to the files of k3lab/."""

from __future__ import annotations

import ast
import importlib
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from k3lab.config.errors import UserError, nearest

PACKAGE = Path(__file__).resolve().parent.parent
MULTI = ("mixer",)  # groups of which several options may be loaded at once
SOURCES = {"trainer": "training"}  # groups whose package is not called like the group
TORCH_FREE = ("tracking", "launch", "sweep", "schedule")  # groups whose files never import torch


@cache
def conf_dir() -> Path:
    """Return the folder of the YAML files: inside an installed package, else beside it in a checkout."""
    for folder in (PACKAGE / "conf", PACKAGE.parent / "conf"):
        if (folder / "train.yaml").is_file():
            return folder
    raise UserError(f"no conf/ folder beside {PACKAGE}: reinstall k3lab")


@cache
def groups() -> tuple[str, ...]:
    """Return the names of all config groups."""
    return tuple(sorted(p.name for p in conf_dir().iterdir() if p.is_dir() and any(p.glob("*.yaml"))))


@cache
def options(group: str) -> tuple[str, ...]:
    """Return the names of a group's options."""
    return tuple(sorted(p.stem for p in (conf_dir() / group).glob("*.yaml")))


def require_option(group: str, name: str) -> None:
    """Raise UserError unless ``name`` is an option of ``group``."""
    if name not in options(group):
        allowed = options(group)
        raise UserError(f"{group}={name}: no such option; allowed: {', '.join(allowed)}{nearest(str(name), allowed)}")


def _module_file(group: str, name: str) -> tuple[Path, str]:
    """Return the source file of an option and its dotted module; presets share their group's settings.py."""
    package = SOURCES.get(group, group)
    for stem in (name, "settings"):
        file = PACKAGE / package / f"{stem}.py"
        if file.is_file():
            return file, f"k3lab.{package}.{stem}"
    raise UserError(f"{group}.name={name}: no such component{nearest(name, options(group))}")


def _named(module: ModuleType, wanted: str) -> Any:
    for key, value in vars(module).items():
        if isinstance(value, type) and key.lower() == wanted.replace("_", "").lower():
            return value
    return None


def settings_class(group: str, name: str) -> Any:
    """Return the frozen dataclass of an option's settings, without importing torch if it is not loaded yet."""
    file, dotted = _module_file(group, name)
    real = group in TORCH_FREE or "torch" in sys.modules
    module = importlib.import_module(dotted) if real else _settings_module(file, dotted)
    for wanted in (f"{name}settings", f"{group}settings"):
        if (found := _named(module, wanted)) is not None:
            return found
    raise UserError(f"{dotted} defines no settings class for {group}={name}")


def component(group: str, name: str) -> Any:
    """Import and return the class of a component, such as ``component("decay", "lower_bound")``."""
    _, dotted = _module_file(group, name)
    found = _named(importlib.import_module(dotted), name)
    if found is None:
        raise UserError(f"{dotted} defines no component for {group}={name}")
    return found


@cache
def _settings_module(file: Path, dotted: str) -> ModuleType:
    """Execute only a file's settings dataclasses.

    A component's file imports torch, which takes seconds; a typo should be refused at once. Settings use the
    standard library and k3lab.config alone, so their definitions, with the literal constants and the imports
    that they need, run without the rest of their file.
    """
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    tree.body = [node for node in tree.body if _is_light(node)]
    module = ModuleType(f"{dotted}:settings")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # typing.get_type_hints looks a class's module up here
    exec(compile(tree, str(file), "exec"), module.__dict__)
    return module


def _is_light(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import):
        return all(alias.name.split(".")[0] in sys.stdlib_module_names for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        source = node.module or ""
        return source.split(".")[0] in sys.stdlib_module_names or source.startswith("k3lab.config")
    if isinstance(node, ast.ClassDef):
        return node.name.endswith("Settings") and bool(node.decorator_list)
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        try:
            ast.literal_eval(node.value)
        except (ValueError, TypeError):
            return False
        return True
    return False
