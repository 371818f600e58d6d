"""What every strategy answers: the Trainer's arguments, and which part of the global batch this process takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Strategy(ABC):
    """A layout of model and data over devices.

    ``rank`` of ``world`` says which share of every micro-batch this process takes; ``group`` is the process
    group over which token counts, losses and router statistics are summed (None: this process has it all).
    """

    rank: int = 0
    world: int = 1
    group: Any = None

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    @abstractmethod
    def trainer_kwargs(self, accelerator: str) -> dict[str, Any]:
        """Return the arguments of Lightning's Trainer for devices of the kind ``accelerator`` (cpu or gpu)."""
