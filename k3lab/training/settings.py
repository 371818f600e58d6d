"""Settings of the training loop, shared by every preset in conf/trainer/."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from k3lab.config.checks import divides, in_range, non_negative, one_of, positive


@dataclass(frozen=True)
class TrainerSettings:
    """Device, precision, length and rhythm of a training."""

    name: str = "auto"
    accelerator: str = "auto"  # auto: a GPU if there is one; cpu; gpu
    precision: str = "auto"  # auto: bf16 autocast on a GPU, fp32 on a CPU; fp32; bf16
    devices: int = 1  # processes, one a device
    max_steps: int = 600  # optimizer steps
    accumulate: int = 1  # micro-batches that a global batch is cut into, on each device
    clip: float | None = 1.0  # largest norm of all gradients together; null: no clipping
    compile: bool = False  # torch.compile the model
    log_every: int = 10  # steps between rows of speed metrics and between plain progress lines
    val_every: int | None = 100  # steps between validations; null: only at the end
    val_batches: int = 8  # validation batches of data.batch_size sequences; 0: no validation
    workers: int = 0  # processes that prepare batches; 0: the training process does
    display: bool = True  # live display on a terminal; false: plain lines
    deterministic: bool = True  # choose deterministic algorithms where PyTorch has them

    def __post_init__(self) -> None:
        one_of("accelerator", self.accelerator, ("auto", "cpu", "gpu"))
        one_of("precision", self.precision, ("auto", "fp32", "bf16"))
        for key in ("devices", "max_steps", "accumulate", "clip", "log_every", "val_every"):
            positive(key, getattr(self, key))
        for key in ("val_batches", "workers"):
            non_negative(key, getattr(self, key))
        in_range("workers", self.workers, 0, 256)
        in_range("devices", self.devices, 1, 65536)

    def warnings(self, config: Any) -> list[str]:
        """Say so when the workers would only take the cores from each other."""
        cores = os.cpu_count() or 1
        if self.workers <= cores:
            return []
        return [f"trainer.workers={self.workers}: this machine has {cores} cores, more workers only slow it down"]

    def check(self, config: Any) -> None:
        """Devices and accumulation cut the global batch into equal parts."""
        parts = self.devices * self.accumulate
        divides("data.batch_size", config.data.batch_size, "trainer.devices*trainer.accumulate", parts)
