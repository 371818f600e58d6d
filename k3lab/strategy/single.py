"""``strategy=single``: one process on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from k3lab.strategy.base import Strategy


@dataclass(frozen=True)
class SingleSettings:
    """One process on one device."""

    name: str = "single"

    def check(self, config: Any) -> None:
        """Refuse several devices: this strategy would train the same model on each of them."""
        if config.trainer.devices != 1:
            raise ValueError(
                f"trainer.devices={config.trainer.devices}: must be 1 with strategy=single; "
                "several devices need a strategy that shares the work"
            )


class Single(Strategy):
    """The whole model and the whole global batch in this process."""

    def trainer_kwargs(self, accelerator: str) -> dict[str, Any]:
        """Return the arguments that make Lightning's Trainer use one device of the kind ``accelerator``."""
        from lightning.pytorch.plugins.environments import LightningEnvironment

        # Named, because Lightning would otherwise read a cluster's variables and take over its signals.
        return {"accelerator": accelerator, "devices": 1, "strategy": "auto", "plugins": [LightningEnvironment()]}
