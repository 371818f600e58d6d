"""How fast the recurrent layers forget: half-lives, and channels that are stuck at either end of their range.

A channel's half-life is ln 2/|g| tokens. Dead channels (|g| < 1e-6) never forget; channels at the bound forget
as fast as the rule allows. Both get vanishing gradients through the gate.

M tokens, H heads, K channels a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from k3lab.decay.base import DEAD
from k3lab.tracking import names

AT_BOUND = 0.99  # share of the bound from which a channel counts as being at it
QUANTILES = {0.1: names.DECAY_HALF_LIFE_Q10, 0.5: names.DECAY_HALF_LIFE_MEDIAN, 0.9: names.DECAY_HALF_LIFE_Q90}


def decay_metrics(log_decays: Mapping[int, tuple[Tensor, float | None]]) -> dict[str, float]:
    """Metrics of the log-decays {decoder layer: (g of any shape, bound)}, of all layers and of each.

    The quantiles of the half-life are those of |g| from the other end, at most ln 2/1e-6 ≈ 693 000 tokens. The
    share at the bound is given for bounded layers alone.
    """
    if not log_decays:
        return {}
    groups: dict[int | None, list[tuple[Tensor, float | None]]] = {None: list(log_decays.values())}
    groups |= {index: [log_decays[index]] for index in sorted(log_decays)}
    found: dict[str, Tensor] = {}
    for index, entries in groups.items():
        rates = torch.cat([g.detach().abs().flatten() for g, _ in entries])
        bounded = [(g <= AT_BOUND * bound).flatten() for g, bound in entries if bound is not None]
        ordered, last = rates.sort().values, len(rates) - 1
        # A value that occurs, not one in between: exact, and nothing that torch.quantile's size limit can refuse.
        values = {name: half_life(ordered[math.floor((1 - q) * last + 1e-9)]) for q, name in QUANTILES.items()}
        values[names.DECAY_DEAD_FRACTION] = (rates < DEAD).double().mean()
        if bounded:
            values[names.DECAY_AT_BOUND_FRACTION] = torch.cat(bounded).double().mean()
        found |= {name if index is None else names.layer(name, index): v for name, v in values.items()}
    return dict(zip(found, torch.stack([v.double() for v in found.values()]).tolist(), strict=True))


def half_life(rate: Tensor) -> Tensor:
    """ln 2/|g| tokens, at most ln 2/1e-6."""
    return math.log(2) / rate.abs().clamp_min(DEAD)


def channel_half_lives(g_MHK: Tensor) -> Tensor:
    """The half-life of each channel at its median |g| over tokens: [H,K]."""
    return half_life(g_MHK.detach().abs().median(0).values)
