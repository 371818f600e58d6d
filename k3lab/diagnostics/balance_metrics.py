"""How evenly the routers load their experts, layer by layer, beside what sampling alone would show.

A count is one (token, expert) assignment of the global batch. With c the counts of a layer and c̄ their mean:
MaxVio = max c/c̄ − 1, MinVio = 1 − min c/c̄, CV = std c/c̄, entropy in units of log E, experts without a token,
and the share of assignments that experts of a fixed capacity ⌈f·c̄⌉ would drop.

L routed layers, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from k3lab.tracking import names
from k3lab_kernels.router import load_metrics, max_vio_floor

CAPACITIES = (1.0, 1.25)  # capacity factors whose drop rate is logged

# Metric → key of load_metrics, and how the layers' values become the model's: the worst one, or their sum.
_METRICS: dict[str, tuple[str, Callable[[list[float]], float]]] = {
    names.BALANCE_MAX_VIO: ("max_vio", max),
    names.BALANCE_MIN_VIO: ("min_vio", max),
    names.BALANCE_CV: ("cv", max),
    names.BALANCE_ENTROPY: ("entropy", min),
    names.BALANCE_DEAD_EXPERTS: ("dead_experts", sum),
    **{names.drop_rate(f): (f"drop_{f}", max) for f in CAPACITIES},
}


class LoadBalance(Metric):
    """Accumulates counts [L,E] of the L routed layers and computes every ``balance/`` metric of loads.

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
        counts_LE = self.counts.cpu()
        by_layer = [load_metrics(counts_E) for counts_E in counts_LE]
        for capacity in CAPACITIES:
            for metrics, share in zip(by_layer, drop_rates(counts_LE, capacity).tolist(), strict=True):
                metrics[f"drop_{capacity}"] = share
        result: dict[str, float] = {}
        for name, (key, over_layers) in _METRICS.items():
            values = [float(metrics[key]) for metrics in by_layer]
            result[name] = float(over_layers(values))
            result |= {names.layer(name, i): value for i, value in zip(self.layers, values, strict=True)}
        tokens = int(counts_LE.sum(1).max()) // self.top_k
        if tokens > 0:
            result[names.BALANCE_MAX_VIO_FLOOR] = max_vio_floor(tokens, self.experts, self.top_k)
        return result


def drop_rates(counts_LE: Tensor, capacity: float) -> Tensor:
    """The share of each layer's assignments beyond ⌈capacity · mean⌉ an expert: [L] fp64, 0 without any."""
    total_L = counts_LE.sum(1)
    percent = round(100 * capacity)
    limit_L = -(-total_L * percent // (100 * counts_LE.shape[1]))  # the ceiling, in integers
    dropped_L = (counts_LE - limit_L[:, None]).clamp_min(0).sum(1)
    return dropped_L.double() / total_L.clamp_min(1)


def routed_layers(model: Any) -> list[int]:
    """The decoder layers that have a router, in order of depth."""
    return [i for i, layer in enumerate(model.layers) if getattr(layer.ffn, "router", None) is not None]


def balance_metrics(model: Any, counts_LE: Tensor | None) -> dict[str, float]:
    """The balance metrics of one global batch's counts [L,E]; nothing without counts."""
    if counts_LE is None:
        return {}
    router = model.routers[0]
    metric = LoadBalance(routed_layers(model), router.experts, router.top_k, sync_on_compute=False)
    metric.update(counts_LE.cpu())
    return metric.compute()


def bias_metrics(biases: Mapping[int, Tensor]) -> dict[str, float]:
    """The spread (largest − smallest) and the quantiles over experts of {decoder layer: bias [E]}.

    The model's own figure is the widest spread. Biases have mean 0 or drift, as their router's rule has it.
    """
    if not biases:
        return {}
    bias_LE = torch.stack([b.detach().double() for b in biases.values()]).cpu()
    levels = torch.tensor(list(names.BALANCE_BIAS_QUANTILES), dtype=torch.float64)
    values_QL = torch.quantile(bias_LE, levels, dim=1)
    spread_L = (values_QL[-1] - values_QL[0]).tolist()
    result = {names.BALANCE_BIAS_SPREAD: max(spread_L)}
    for row, index in enumerate(biases):
        result[names.layer(names.BALANCE_BIAS_SPREAD, index)] = spread_L[row]
        for name, value in zip(names.BALANCE_BIAS_QUANTILES.values(), values_QL[:, row].tolist(), strict=True):
            result[names.layer(name, index)] = value
    return result


def biases_of(model: Any) -> dict[int, Tensor]:
    """{decoder layer: bias [E]} of the routers that have one."""
    layers = zip(routed_layers(model), model.routers, strict=True)
    return {i: router.bias for i, router in layers if router.bias is not None}
