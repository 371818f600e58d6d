"""Libraries that only some data sources need, and what to install when one is not there."""

from __future__ import annotations

import importlib
from types import ModuleType

from k3lab.config.errors import UserError


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional library, installed by `pip install 'k3lab[extra]'`; raises UserError without it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] != module:
            raise  # it is there, and broken: its own message says more
        raise UserError(f"{purpose} needs the library '{module}': pip install 'k3lab[{extra}]'") from error
