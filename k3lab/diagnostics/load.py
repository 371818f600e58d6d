"""How evenly the routers load their experts, layer by layer, beside what sampling alone would show.

A count is one (token, expert) assignment of the global batch. With c the counts of a layer and c̄ their mean:
MaxVio = max c/c̄ − 1, MinVio = 1 − min c/c̄, CV = std c/c̄, entropy in units of log E, experts without a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from k3lab.tracking import names
from k3lab_kernels.router import load_metrics, max_vio_floor

# Metric → key of load_metrics, and how the layers' values become the model's: the worst one, or their sum.
_METRICS: dict[str, tuple[str, Callable[[list[float]], float]]] = {
    names.BALANCE_MAX_VIO: ("max_vio", max),
    names.BALANCE_MIN_VIO: ("min_vio", max),
    names.BALANCE_CV: ("cv", max),
    names.BALANCE_ENTROPY: ("entropy", min),
    names.BALANCE_DEAD_EXPERTS: ("dead_experts", sum),
}


class LoadBalance(Metric):
    """Accumulates counts [L,E] of the L routed layers and computes every ``balance/`` metric.

    ``layers`` are the decoder layers the rows belong to. Counts add up over updates and, unless
    ``sync_on_compute=False`` says that they are global already, over processes. The floor is the MaxVio that
    ideal balance shows on average for this many tokens: a curve that lies on it cannot improve.
    """

    full_state_update = False
    counts: Tensor

    def __init__(self, layers: Sequence[int], experts: int, top_k: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.layers = tuple(layers)
        self.experts = experts
        self.top_k = top_k
        self.add_state("counts", torch.zeros(len(layers), experts, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, counts_LE: Tensor) -> None:
        """Add integer counts [L,E]."""
        if counts_LE.shape != self.counts.shape:
            raise ValueError(f"counts has shape {list(counts_LE.shape)}: must be {list(self.counts.shape)}")
        self.counts += counts_LE.to(self.counts)

    def compute(self) -> dict[str, float]:
        """The model's metrics (worst layer; experts without a token summed) and each layer's."""
        by_layer = [load_metrics(counts_E) for counts_E in self.counts.cpu()]
        result: dict[str, float] = {}
        for name, (key, over_layers) in _METRICS.items():
            values = [float(metrics[key]) for metrics in by_layer]
            result[name] = float(over_layers(values))
            result |= {names.layer(name, i): value for i, value in zip(self.layers, values, strict=True)}
        tokens = int(self.counts.sum(1).max()) // self.top_k
        if tokens > 0:
            result[names.BALANCE_MAX_VIO_FLOOR] = max_vio_floor(tokens, self.experts, self.top_k)
        return result
