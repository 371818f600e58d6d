"""Kimi Delta Attention written as its recurrence: the oracle for every faster path.

Shapes: B batch, T time, H query/key heads, HV value heads, K key dim, V value dim, N sequences.
Any float dtype and device; differentiable by autograd. Source: Kimi Linear (arXiv 2510.26692), Eq. 1, and the
Kimi K3 report (arXiv 2607.24653), Eq. 5, for the bounded gate.
"""

from __future__ import annotations

import itertools
from typing import Any

from torch import Tensor, stack, zeros
from torch.nn import functional as F

from k3lab_kernels.kda.checks import accumulation_dtype, check_arguments, sequence_bounds


def naive_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Any, ...]:
    """One token after another; arguments and results as in `chunk_kda`.

    `S ← diag(e^g)·S;  S ← S + β·k·(v − Sᵀk)ᵀ;  o = scale·Sᵀq` in fp32 (fp64 for fp64 inputs).
    """
    check_arguments(
        q, k, v, g, beta, scale=scale, initial_state=initial_state, allow_neg_eigval=allow_neg_eigval,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel, use_gate_in_kernel=use_gate_in_kernel,
        lower_bound=lower_bound, state_v_first=state_v_first, cu_seqlens=cu_seqlens,
        cu_seqlens_cpu=cu_seqlens_cpu, A_log=A_log, dt_bias=dt_bias, chunk_size=chunk_size,
    )  # fmt: skip
    B, T, H, K = q.shape
    HV, V = v.shape[2:]
    dtype = accumulation_dtype(v)
    scale = K**-0.5 if scale is None else scale
    q_BTHK, k_BTHK, v_BTHV, g_BTHK, beta_BTH = (x.to(dtype) for x in (q, k, v, g, beta))

    if use_qk_l2norm_in_kernel:
        q_BTHK = q_BTHK * (q_BTHK.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
        k_BTHK = k_BTHK * (k_BTHK.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
    q_BTHK, k_BTHK = (x.repeat_interleave(HV // H, dim=2) for x in (q_BTHK, k_BTHK))
    if use_gate_in_kernel:
        if dt_bias is not None:
            g_BTHK = g_BTHK + dt_bias.to(dtype).reshape(HV, K)
        speed = 1.0 if A_log is None else A_log.to(dtype).reshape(HV, 1).exp()
        if lower_bound is None:
            g_BTHK = -speed * F.softplus(g_BTHK, threshold=40)
        else:
            g_BTHK = lower_bound * (speed * g_BTHK).sigmoid()
    if use_beta_sigmoid_in_kernel:
        beta_BTH = beta_BTH.sigmoid() * (2 if allow_neg_eigval else 1)

    if cu_seqlens is None:
        sequences = [(b, 0, T) for b in range(B)]
    else:
        bounds = sequence_bounds(cu_seqlens, cu_seqlens_cpu, T)
        sequences = [(0, start, stop) for start, stop in itertools.pairwise(bounds)]

    outputs, finals, chunk_states = [], [], []
    for n, (b, start, stop) in enumerate(sequences):
        if initial_state is None:
            S_HKV = zeros(HV, K, V, dtype=dtype, device=v.device)
        else:
            S_HKV = initial_state[n].to(dtype)
            S_HKV = S_HKV.mT if state_v_first else S_HKV
        for t in range(start, stop):
            if (t - start) % chunk_size == 0:
                chunk_states.append(S_HKV)
            q_HK, k_HK, v_HV = q_BTHK[b, t], k_BTHK[b, t], v_BTHV[b, t]
            S_HKV = S_HKV * g_BTHK[b, t].exp().unsqueeze(-1)
            error_HV = v_HV - (S_HKV * k_HK.unsqueeze(-1)).sum(-2)
            S_HKV = S_HKV + (beta_BTH[b, t].unsqueeze(-1) * k_HK).unsqueeze(-1) * error_HV.unsqueeze(-2)
            outputs.append(scale * (S_HKV * q_HK.unsqueeze(-1)).sum(-2))
        finals.append(S_HKV)

    o = stack(outputs).reshape(B, T, HV, V).to(v.dtype) if outputs else v.clone()
    layout = (lambda S: S.mT) if state_v_first else (lambda S: S)
    final_state = layout(stack(finals)).clone() if output_final_state and finals else None
    if output_final_state and not finals:
        final_state = zeros(0, *((HV, V, K) if state_v_first else (HV, K, V)), dtype=dtype, device=v.device)
    if not return_intermediate_states:
        return o, final_state
    shape = (HV, V, K) if state_v_first else (HV, K, V)
    if not chunk_states:
        return o, final_state, zeros(B, 0, *shape, dtype=dtype, device=v.device)
    return o, final_state, layout(stack(chunk_states)).reshape(B, -1, *shape)
