"""Settings of the diagnostics of a training, shared by every preset that has no file of its own."""

from __future__ import annotations

from dataclasses import dataclass

from k3lab.config.checks import non_negative, positive


@dataclass(frozen=True)
class DiagnosticsSettings:
    """How often a model is looked at, and on how much data."""

    name: str = "cheap"
    enabled: bool = True  # false: nothing is measured, the other keys are ignored
    every: int | None = None  # optimizer steps between two measurements; null: 50 on a CPU, 200 on a GPU
    probe_sequences: int = 1  # sequences of the current batch that the extra forward and backward pass sees
    sample_tokens: int = 128  # tokens of the probe on which decay and the stream's effective rank are measured
    max_source_weights: int = 400  # weights a measurement, sublayers × sources, above which only sums are logged
    figures: bool = True  # draw figures/*.png when the training ends

    on_schedule = True  # no key: these diagnostics go along with a training

    def steps_between(self, device: str) -> int:
        """``every``, or its default on a type of device.

        On a GPU a step of a small model takes no longer than the launching of its kernels, and so does the extra
        pass over one sequence: there it costs a step or two, on a CPU a fraction of one.
        """
        return self.every or (50 if device == "cpu" else 200)

    def __post_init__(self) -> None:
        for key in ("every", "probe_sequences", "sample_tokens"):
            positive(key, getattr(self, key))
        non_negative("max_source_weights", self.max_source_weights)
