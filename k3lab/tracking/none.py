"""No tracking server: metrics.jsonl and summary.json in the run folder are all there is."""

from __future__ import annotations

from dataclasses import dataclass

from k3lab.tracking.base import Backend


@dataclass(frozen=True)
class NoneSettings:
    """Nothing to set."""

    name: str = "none"


class NONE(Backend):
    """Sends nothing."""

    remote = False
