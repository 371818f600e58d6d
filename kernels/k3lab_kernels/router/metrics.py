"""How evenly tokens are spread over experts, and how evenly chance alone could spread them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from k3lab_kernels.router.checks import check_k, check_tensor

EULER = 0.5772156649015329


def load_metrics(counts: Tensor) -> dict[str, float]:
    """Balance of `counts` [E], tokens an expert got, as Python numbers.

    max_vio = max/mean − 1; min_vio = 1 − min/mean; cv = std/mean; entropy of the shares over ln E (1 is even);
    dead_experts = experts without tokens, a count. No tokens at all: zeros.
    """
    numbers = (torch.int32, torch.int64, torch.float32, torch.float64)
    check_tensor("counts", counts, "[E]", 1, numbers)
    E = counts.shape[0]
    if E == 0:
        raise ValueError("counts: must have at least one expert, got shape [0]")
    c = counts.detach().double()
    if not bool(torch.isfinite(c).all() & (c >= 0).all()):
        raise ValueError("counts: must be finite and not negative")
    total = c.sum().item()
    if total == 0:
        return {"max_vio": 0.0, "min_vio": 0.0, "cv": 0.0, "entropy": 0.0, "dead_experts": 0}
    mean, share = total / E, c / total
    return {
        "max_vio": c.max().item() / mean - 1,
        "min_vio": 1 - c.min().item() / mean,
        "cv": c.std(correction=0).item() / mean,
        "entropy": -torch.xlogy(share, share).sum().item() / math.log(E) if E > 1 else 1.0,
        "dead_experts": int((c == 0).sum()),
    }


def max_vio_floor(tokens: int, experts: int, k: int) -> float:
    """MaxVio that an ideal balance still shows on average on fresh batches of this many tokens.

    `CV·m_E`, CV = √(2(1−p)/(T·p)) for p = k/E, m_E the mean of the largest of E standard normals (asymptotic form).
    No tokens: 0.
    """
    for name, number, kinds in (("tokens", tokens, int | float), ("experts", experts, int)):
        if not isinstance(number, kinds) or isinstance(number, bool):
            raise TypeError(f"{name}: must be a number, got {type(number).__name__}")
    if not 0 <= tokens < math.inf:
        raise ValueError(f"tokens={tokens}: must be finite and not negative")
    check_k(k, experts)
    if tokens == 0:
        return 0.0
    p = k / experts
    a = math.sqrt(2 * math.log(experts))
    largest = a - (math.log(math.log(experts)) + math.log(4 * math.pi)) / (2 * a) + EULER / a
    return math.sqrt(2 * (1 - p) / (tokens * p)) * largest
