"""Model FLOPs utilisation: dense bf16 rates of accelerators, and the FLOPs that a training step needs."""

from __future__ import annotations

# Dense (not sparse) bf16 tensor-core rates of the data sheets, in FLOP/s. The first entry whose words all
# occur in the device's name counts, so the special forms of a chip stand before the plain one.
DENSE_BF16: tuple[tuple[tuple[str, ...], float], ...] = (
    (("gb200",), 2500e12),
    (("b200",), 2250e12),
    (("gh200",), 989.4e12),
    (("h200", "nvl"), 835e12),
    (("h200",), 989.4e12),
    (("h100", "nvl"), 835e12),
    (("h100", "pcie"), 756e12),
    (("h100",), 989.4e12),
    (("h800",), 989.4e12),
    (("a100",), 312e12),
    (("a800",), 312e12),
    (("l40s",), 362e12),
    (("l40",), 181e12),
    (("l4",), 121e12),
    (("a10g",), 70e12),
    (("a10",), 125e12),
    (("mi300x",), 1307e12),
    (("mi250x",), 383e12),
)


def peak_flops(device_name: str) -> float | None:
    """Return the dense bf16 rate of a device in FLOP/s, or None for one that the table does not know."""
    name = device_name.lower().replace("-", " ")
    words = name.split()
    for needed, rate in DENSE_BF16:
        if all(any(word.startswith(part) for word in words) for part in needed):
            return rate
    return None


def training_flops(forward_flops_per_token: float, tokens: float) -> float:
    """Return the FLOPs of training on ``tokens``: the backward pass costs twice the forward pass."""
    return 3.0 * forward_flops_per_token * tokens


def mfu(forward_flops_per_token: float, tokens_per_s: float, device_name: str, devices: int) -> float | None:
    """Return the share of the devices' dense bf16 rate that the model's own FLOPs make up, or None."""
    peak = peak_flops(device_name)
    if peak is None:
        return None
    return training_flops(forward_flops_per_token, tokens_per_s) / (peak * devices)
