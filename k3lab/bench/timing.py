"""Time functions on whatever device they run on, and measure the device's own ceilings."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch


def times_ms(run: Callable[[], Any], device: torch.device, seconds: float = 1.0, least: int = 5) -> list[float]:
    """Return the milliseconds of repeated calls, after warm-up: at least ``least``, for about ``seconds``."""
    run()
    run()
    _wait(device)
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < least or (time.perf_counter() < end and len(found) < 1000):
        if device.type == "cuda":
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run()
            stop.record()
            stop.synchronize()
            found.append(start.elapsed_time(stop))
        else:
            begin = time.perf_counter()
            run()
            found.append((time.perf_counter() - begin) * 1e3)
    return found


def median_ms(run: Callable[[], Any], device: torch.device, seconds: float = 1.0) -> float:
    """Return the median milliseconds of a call."""
    return statistics.median(times_ms(run, device, seconds))


def peak_mib(run: Callable[[], Any], device: torch.device) -> float | None:
    """Return the MiB that a call takes beyond what was allocated before it; None where it cannot be told."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


def ceilings(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Measure copy bandwidth (bytes read plus written a second) and matrix-product FLOPs a second."""
    size = 2**31 if device.type == "cuda" else 2**27
    source = torch.empty(size, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    copy = 2 * size / median_ms(lambda: target.copy_(source), device) * 1e3
    n = 8192 if device.type == "cuda" else 1024
    a = torch.randn(n, n, device=device, dtype=dtype)
    b = torch.randn(n, n, device=device, dtype=dtype)
    rate = 2 * n**3 / median_ms(lambda: a @ b, device) * 1e3
    return {"copy_bytes_per_s": copy, "matmul_flops_per_s": rate}


def floor_ms(bytes_moved: float, flops: float, limits: dict[str, float]) -> float:
    """Return the time below which no version can run: the larger of bytes over bandwidth and FLOPs over rate."""
    return 1e3 * max(bytes_moved / limits["copy_bytes_per_s"], flops / limits["matmul_flops_per_s"])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
