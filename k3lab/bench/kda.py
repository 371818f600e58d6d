"""Kimi Delta Attention beside causal softmax attention and the floor, forward and forward + backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from k3lab.bench.timing import ceilings, floor_ms, median_ms, peak_mib
from k3lab_kernels.kda import chunk_kda

SHAPES = {"cpu": [(4, 512, 4, 64)], "cuda": [(4, 2048, 16, 128), (1, 8192, 32, 128)]}  # B, T, H, K = V
CHUNK = 64


def bench_kda(device: torch.device, shapes: list[tuple[int, int, int, int]] | None = None) -> dict[str, Any]:
    """Time every gate of ``chunk_kda`` against scaled_dot_product_attention; returns ceilings and rows."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    limits = ceilings(device, dtype)
    rows = [row for shape in shapes or SHAPES[device.type] for row in _shape_rows(shape, device, dtype, limits)]
    return {"dtype": str(dtype).removeprefix("torch."), "ceilings": limits, "rows": rows}


def _shape_rows(
    shape: tuple[int, int, int, int], device: torch.device, dtype: torch.dtype, limits: dict[str, float]
) -> list[dict[str, Any]]:
    B, T, H, K = shape
    random = torch.Generator(device).manual_seed(0)

    def draw(*size: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(*size, device=device, dtype=dtype, generator=random).requires_grad_()

    q, k, v, z = (draw(B, T, H, K) for _ in range(4))
    b = draw(B, T, H)
    A_log = torch.zeros(H, device=device).requires_grad_()
    dt_bias = draw(H * K, dtype=torch.float32)
    ready = (-F.softplus(z.detach().float())).requires_grad_()
    fused: dict[str, Any] = {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True}
    gated: dict[str, Any] = {**fused, "use_gate_in_kernel": True, "A_log": A_log, "dt_bias": dt_bias}
    arms: dict[str, tuple[Callable[[], Tensor], list[Tensor]]] = {
        "bounded gate": (
            lambda: chunk_kda(q, k, v, z, b, safe_gate=True, lower_bound=-5.0, **gated)[0],
            [q, k, v, z, b, A_log, dt_bias],
        ),
        "softplus gate": (
            lambda: chunk_kda(q, k, v, z, b, **gated)[0],
            [q, k, v, z, b, A_log, dt_bias],
        ),
        "ready gate": (lambda: chunk_kda(q, k, v, ready, b, **fused)[0], [q, k, v, ready, b]),
        "SDPA": (
            lambda: F.scaled_dot_product_attention(
                q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
            ),
            [q, k, v],
        ),
    }
    rows = [_row(name, run, leaves, shape, device, limits) for name, (run, leaves) in arms.items()]
    peer = rows[-1]
    for row in rows:
        row["times_sdpa_fwd"] = row["fwd_ms"] / peer["fwd_ms"]
        row["times_sdpa_fwdbwd"] = row["fwdbwd_ms"] / peer["fwdbwd_ms"]
    return rows


def _row(
    name: str,
    run: Callable[[], Tensor],
    leaves: list[Tensor],
    shape: tuple[int, int, int, int],
    device: torch.device,
    limits: dict[str, float],
) -> dict[str, Any]:
    grad = torch.randn_like(run().detach())

    def forward() -> Tensor:
        with torch.no_grad():
            return run()

    def both() -> None:
        torch.autograd.grad(run(), leaves, grad.to(grad.dtype))

    B, T, H, K = shape
    tensor = B * T * H * K * grad.element_size()
    # Forward reads q, k, v, gate and writes o. Backward reads those and dO, writes four gradients.
    flops = B * T * H * (8 * CHUNK * K + 8 * K * K)
    return {
        "arm": name,
        "shape": list(shape),
        "fwd_ms": median_ms(forward, device),
        "fwdbwd_ms": median_ms(both, device),
        "fwd_floor_ms": floor_ms(5 * tensor, flops, limits),
        "fwdbwd_floor_ms": floor_ms(14 * tensor, 3 * flops, limits),
        "fwdbwd_peak_mib": peak_mib(both, device),
    }
