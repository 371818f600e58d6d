"""What the KDA functions accept: one ValueError or TypeError per mistake, naming the argument."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LOWEST_BOUND = -10.0


def accumulation_dtype(v: Tensor) -> torch.dtype:
    """The dtype of states and sums: fp64 for fp64 values, else fp32."""
    return torch.float64 if v.dtype == torch.float64 else torch.float32


def _is_number(x: object) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _tensor(name: str, x: object, shape: tuple[int, ...] | None, dims: str, dtypes: tuple, device) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: must be a tensor of shape {dims}, got {type(x).__name__}")
    if x.dtype not in dtypes:
        allowed = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
        raise ValueError(f"{name}: dtype must be {allowed}, got {str(x.dtype).removeprefix('torch.')}")
    if x.device != device:
        raise ValueError(f"{name}: must be on {device} like v, got {x.device}")
    if shape is not None and tuple(x.shape) != shape:
        raise ValueError(f"{name}: must have shape {dims} = {list(shape)}, got {list(x.shape)}")


def check_arguments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float | None,
    initial_state: Tensor | None,
    allow_neg_eigval: bool,
    use_beta_sigmoid_in_kernel: bool,
    use_gate_in_kernel: bool,
    lower_bound: float | None,
    state_v_first: bool,
    cu_seqlens: Tensor | None,
    cu_seqlens_cpu: Tensor | None,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    chunk_size: int,
) -> None:
    """Check everything that shapes, dtypes and options can tell; tensor values are not read."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: must be a tensor, got {type(x).__name__}")
        if x.dim() != 4:
            raise ValueError(f"{name}: must have 4 dimensions [B, T, heads, dim], got shape {list(x.shape)}")
    B, T, H, K = q.shape
    HV, V = v.shape[2:]
    device, same = v.device, (v.dtype,)
    _tensor("v", v, (B, T, HV, V), "[B, T, HV, V] with B and T of q", FLOATS, device)
    _tensor("q", q, None, "[B, T, H, K]", same, device)
    _tensor("k", k, (B, T, H, K), "[B, T, H, K] of q", same, device)
    for name, size in (("H", H), ("HV", HV), ("K", K), ("V", V)):
        if size == 0:
            raise ValueError(f"{'v' if name in ('HV', 'V') else 'q'}: {name} must be at least 1")
    if HV % H:
        raise ValueError(f"v: its HV={HV} heads must be a multiple of the H={H} heads of q and k")
    wide = (v.dtype, accumulation_dtype(v)) if v.dtype != accumulation_dtype(v) else same
    _tensor("g", g, (B, T, HV, K), "[B, T, HV, K]", wide, device)
    _tensor("beta", beta, (B, T, HV), "[B, T, HV]", wide, device)

    if scale is not None and not (_is_number(scale) and math.isfinite(scale)):
        raise ValueError(f"scale: must be a finite number or None, got {scale!r}")
    if not isinstance(chunk_size, int) or chunk_size not in (32, 64):
        raise ValueError(f"chunk_size: must be 32 or 64, got {chunk_size!r}")
    if allow_neg_eigval and not use_beta_sigmoid_in_kernel:
        raise ValueError("allow_neg_eigval: needs use_beta_sigmoid_in_kernel=True (it doubles the sigmoid)")
    if lower_bound is not None and not (_is_number(lower_bound) and LOWEST_BOUND <= lower_bound < 0):
        raise ValueError(f"lower_bound: must be a number in [{LOWEST_BOUND:g}, 0), got {lower_bound!r}")
    if use_gate_in_kernel:
        if A_log is None and lower_bound is None:
            raise ValueError("A_log: the gate without a lower_bound needs it, got None")
        for name, parameter, size, dims in (("A_log", A_log, HV, "HV"), ("dt_bias", dt_bias, HV * K, "HV*K")):
            if parameter is None:
                continue
            _tensor(name, parameter, None, f"with {dims} elements", FLOATS, device)
            if parameter.numel() != size:
                raise ValueError(f"{name}: must have {dims} = {size} elements, got shape {list(parameter.shape)}")

    N = B
    if cu_seqlens is not None:
        N = _check_cu_seqlens("cu_seqlens", cu_seqlens) - 1
        if B != 1:
            raise ValueError(f"cu_seqlens: packed sequences need a batch of 1, got B={B}")
    if cu_seqlens_cpu is not None:
        if cu_seqlens is None:
            raise ValueError("cu_seqlens_cpu: is a host copy of cu_seqlens, which is None")
        if _check_cu_seqlens("cu_seqlens_cpu", cu_seqlens_cpu) - 1 != N:
            raise ValueError(f"cu_seqlens_cpu: must equal cu_seqlens, got {N + 1} and {len(cu_seqlens_cpu)} entries")
        if cu_seqlens_cpu.device.type != "cpu":
            raise ValueError(f"cu_seqlens_cpu: must be on the CPU, got {cu_seqlens_cpu.device}")
    if initial_state is not None:
        dims, shape = ("[N, HV, V, K]", (N, HV, V, K)) if state_v_first else ("[N, HV, K, V]", (N, HV, K, V))
        _tensor("initial_state", initial_state, shape, dims, FLOATS, device)


def _check_cu_seqlens(name: str, x: object) -> int:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: must be an int32 or int64 tensor, got {type(x).__name__}")
    if x.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name}: must be int32 or int64, got {str(x.dtype).removeprefix('torch.')}")
    if x.dim() != 1 or x.numel() < 2:
        raise ValueError(f"{name}: must have shape [N+1] with N at least 1, got {list(x.shape)}")
    return x.numel()


def sequence_bounds(cu_seqlens: Tensor, cu_seqlens_cpu: Tensor | None, T: int) -> list[int]:
    """Offsets of the packed sequences as integers, checked; reads the device only without a host copy."""
    bounds = (cu_seqlens if cu_seqlens_cpu is None else cu_seqlens_cpu).tolist()
    if cu_seqlens_cpu is not None and cu_seqlens.device.type == "cpu" and cu_seqlens.tolist() != bounds:
        raise ValueError("cu_seqlens_cpu: must equal cu_seqlens, got different offsets")
    if bounds[0] != 0:
        raise ValueError(f"cu_seqlens: must start at 0, got {bounds[0]}")
    if any(a > b for a, b in itertools.pairwise(bounds)):
        raise ValueError(f"cu_seqlens: must not decrease, got {bounds if len(bounds) < 20 else '…'}")
    if bounds[-1] != T:
        raise ValueError(f"cu_seqlens: must end at T={T}, got {bounds[-1]}")
    return bounds
