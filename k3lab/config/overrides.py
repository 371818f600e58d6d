"""Overrides of the command line in Hydra's grammar: one value each, or a sweep over several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override as HydraOverride
from hydra.core.override_parser.types import OverrideType
from hydra.errors import HydraException

from k3lab.config.errors import UserError


@dataclass(frozen=True)
class Override:
    """One ``key=value`` with a single value."""

    key: str
    value: Any
    text: str
    removes: bool = False

    def plain(self) -> str:
        """Return the override as Hydra reads it, without ``+``."""
        return self.text.lstrip("+")


def parse(text: str) -> Override:
    """Parse one override; raises UserError when it is malformed or a sweep."""
    parsed = parse_hydra(text)
    if parsed.is_sweep_override():
        raise UserError(f"{text}: several values are a sweep; add -m to run one job for each")
    removes = parsed.type == OverrideType.DEL
    return Override(parsed.key_or_group, None if removes else parsed.value(), text, removes)


def parse_hydra(text: str) -> HydraOverride:
    """Parse one override, sweeps included; raises UserError."""
    if "=" not in text and not text.startswith("~"):
        raise UserError(f"'{text}' is no override: write key=value, such as decay=softplus")
    try:
        parsed = OverridesParser.create().parse_override(text)
    except HydraException as error:
        detail = str(error).splitlines()[0] if str(error) else "syntax error"
        raise UserError(f"'{text}' is no valid override ({detail}); quote values with special characters") from error
    if parsed.package is not None:
        raise UserError(f"'{text}': packages (@) are not used here")
    return parsed
