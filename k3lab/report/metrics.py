"""What the report knows of each metric: its name in words, unit, good direction, and how a run's value is read."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from k3lab.tracking import names

LOWER, HIGHER, NEUTRAL = -1, 1, 0
TAIL = 0.1  # share of the steps that noisy metrics are averaged over


@dataclass(frozen=True)
class Metric:
    """How one metric is read, written and judged."""

    name: str
    title: str
    unit: str = ""  # of the value as shown
    better: int = NEUTRAL
    read: str = "last"  # last | tail (mean of the last tenth) | median | max, over a run's steps
    scale: float = 1.0  # shown value = scale × logged value
    difference_unit: str = ""  # when it is not the unit
    meaning: str = ""

    @property
    def step_unit(self) -> str:
        """Return the unit of a difference."""
        return self.difference_unit or self.unit

    @property
    def label(self) -> str:
        """Return title and unit, as on an axis."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    def value(self, steps: np.ndarray, values: np.ndarray, until: int) -> float:
        """Return the run's value at step ``until`` from its series, NaN without one; unscaled."""
        keep = steps <= until
        steps, values = steps[keep], values[keep]
        if not len(values):
            return float("nan")
        if self.read == "tail":
            tail = values[steps > until - max(1, round(until * TAIL))]
            return float((tail if len(tail) else values[-1:]).mean())
        if self.read == "median":
            return float(np.median(values))
        return float(values.max() if self.read == "max" else values[-1])


_ALL = (
    Metric(
        names.VAL_LOSS,
        "validation loss",
        "nats a token",
        LOWER,
        difference_unit="nats",
        meaning="How badly the model predicts the next token of text that it was not trained on: the mean negative "
        "log-probability of the right token. 0 is perfect; guessing among V tokens gives ln V.",
    ),
    Metric(
        names.VAL_BITS_PER_BYTE,
        "validation bits a byte",
        "bits a byte",
        LOWER,
        meaning="Validation loss in bits for each byte of text, which does not depend on the tokeniser.",
    ),
    Metric(
        names.VAL_ACCURACY,
        "validation accuracy",
        "%",
        HIGHER,
        scale=100,
        difference_unit="percentage points",
        meaning="Share of the scored validation tokens that the model's first guess gets right.",
    ),
    Metric(
        names.TRAIN_LOSS,
        "training loss",
        "nats a token",
        LOWER,
        "tail",
        difference_unit="nats",
        meaning="The same loss on the text being trained on; mean of the last tenth of the steps.",
    ),
    Metric(
        names.TRAIN_GRAD_NORM,
        "gradient norm",
        read="tail",
        meaning="Length of the whole gradient before clipping; mean of the last tenth of the steps.",
    ),
    Metric(
        names.BALANCE_MAX_VIO,
        "load imbalance (MaxVio)",
        "",
        LOWER,
        "tail",
        meaning="Load of the busiest expert over the mean load, minus one, in the worst layer: 0 is perfect, 1 means "
        "that one expert gets twice its share. Mean of the measurements in the last tenth of the steps.",
    ),
    Metric(
        names.BALANCE_MAX_VIO_FLOOR,
        "sampling floor of MaxVio",
        meaning="What MaxVio a perfectly balanced router shows by chance alone, because a batch is finite. "
        "A curve on the floor cannot improve.",
    ),
    Metric(
        names.BALANCE_MIN_VIO,
        "idle load (MinVio)",
        "",
        LOWER,
        "tail",
        meaning="One minus the load of the idlest expert over the mean load, in the worst layer.",
    ),
    Metric(
        names.BALANCE_CV,
        "load spread (CV)",
        "",
        LOWER,
        "tail",
        meaning="Standard deviation of the experts' loads over their mean, in the worst layer.",
    ),
    Metric(
        names.BALANCE_ENTROPY,
        "load entropy",
        "",
        HIGHER,
        "tail",
        meaning="Entropy of the experts' loads in units of its maximum, in the worst layer: 1 is perfect balance.",
    ),
    Metric(
        names.BALANCE_DEAD_EXPERTS,
        "dead experts",
        "",
        LOWER,
        "tail",
        meaning="Experts that got no token at all in a batch, summed over the layers.",
    ),
    Metric(
        names.DECAY_HALF_LIFE_MEDIAN,
        "median half-life",
        "tokens",
        meaning="Tokens after which half of a memory channel's content has faded, in the median over channels.",
    ),
    Metric(
        names.DECAY_DEAD_FRACTION,
        "channels that never forget",
        "%",
        scale=100,
        difference_unit="percentage points",
        meaning="Share of memory channels whose decay is practically zero: their gate no longer learns.",
    ),
    Metric(
        names.DECAY_AT_BOUND_FRACTION,
        "channels at the bound",
        "%",
        scale=100,
        difference_unit="percentage points",
        meaning="Share of memory channels that forget as fast as the bound allows: their gate no longer learns.",
    ),
    Metric(
        names.PERF_TOKENS_PER_S,
        "training speed",
        "tokens/s",
        HIGHER,
        "median",
        meaning="Tokens trained on in a second, validation and diagnostics left out; median over the run.",
    ),
    Metric(
        names.PERF_STEP_MS,
        "time of a step",
        "ms",
        LOWER,
        "median",
        meaning="Median time of an optimizer step.",
    ),
    Metric(
        names.PERF_MFU,
        "model FLOPs utilisation",
        "%",
        HIGHER,
        "median",
        100,
        "percentage points",
        meaning="Share of the device's peak rate of arithmetic that the model itself needs.",
    ),
    Metric(
        names.PERF_PEAK_MEMORY_GIB,
        "peak memory",
        "GiB",
        LOWER,
        "max",
        meaning="Largest memory allocated on the device during training.",
    ),
)
KNOWN = {m.name: m for m in _ALL}
_LAYER = re.compile(r"/layer_(\d+)(?=/|$)")


def metric(name: str) -> Metric:
    """Return what is known of a metric; one of a single layer inherits from the whole model's."""
    if name in KNOWN:
        return KNOWN[name]
    if (layer := _LAYER.search(name)) and (base := KNOWN.get(_LAYER.sub("", name))):
        return replace(base, name=name, title=f"{base.title}, layer {int(layer.group(1))}")
    return Metric(name, name)


def main_metric(present: set[str]) -> str | None:
    """Return the metric that answers the question: loss for text, accuracy for a task, else what there is."""
    if names.VAL_ACCURACY in present and names.VAL_BITS_PER_BYTE not in present:
        return names.VAL_ACCURACY
    for name in (names.VAL_LOSS, names.TRAIN_LOSS):
        if name in present:
            return name
    return min(present, default=None)
