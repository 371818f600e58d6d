"""Run one benchmark, show it as a table, and keep it as JSON with the machine and the versions named."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from k3lab.bench.kda import bench_kda
from k3lab.config.errors import UserError

_BENCHES = {"kda": bench_kda}
_COLUMNS = {
    "fwd_ms": "fwd ms",
    "times_sdpa_fwd": "÷ SDPA",
    "fwd_floor_ms": "floor",
    "fwdbwd_ms": "fwd+bwd ms",
    "times_sdpa_fwdbwd": "÷ SDPA",
    "fwdbwd_floor_ms": "floor",
    "fwdbwd_peak_mib": "peak MiB",
}


def run_bench(what: str, json_file: Path | None, device_name: str = "auto") -> int:
    """Time ``what`` on a device, print the table and write ``json_file``; returns the exit code."""
    if device_name == "auto":
        device_name = "cuda" if torch.cuda.is_available() else "cpu"
    if device_name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: no CUDA device is to be seen; use --device cpu")
    device = torch.device(device_name)
    if json_file is not None and not json_file.parent.is_dir():
        raise UserError(f"--json {json_file}: its folder does not exist")
    result = {"benchmark": what, **_machine(device), **_BENCHES[what](device)}
    _print(result)
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def _machine(device: torch.device) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "device": name,
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _print(result: dict[str, Any]) -> None:
    limits = result["ceilings"]
    title = (
        f"{result['benchmark']} on {result['device']}, {result['dtype']}, torch {result['torch']}: "
        f"copy {limits['copy_bytes_per_s'] / 1e9:.1f} GB/s, matmul {limits['matmul_flops_per_s'] / 1e12:.3f} TFLOP/s"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("arm")
    table.add_column("shape")
    for heading in _COLUMNS.values():
        table.add_column(heading, justify="right")
    for row in result["rows"]:
        cells = (row[key] for key in _COLUMNS)
        shape = "×".join(map(str, row["shape"]))
        table.add_row(row["arm"], shape, *("–" if c is None else f"{c:.3g}" for c in cells))
    Console().print(table)
