"""Public KDA functions: checked arguments, one custom op for the chunk path, dispatch by what the gate guarantees.

`torch.ops.k3lab.kda_chunk` takes finished inputs in token layout and hides the chunk layout, so that packed
sequences compile without graph breaks. Its backward pass is the op `kda_chunk_backward`.
Shapes: B batch, T time, H query/key heads, HV value heads, K key dim, V value dim, N sequences, NT chunks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from k3lab_kernels.kda.checks import accumulation_dtype, check_arguments
from k3lab_kernels.kda.chunk import Kept, chunk_backward, chunk_forward, split_inputs
from k3lab_kernels.kda.gate import prepare
from k3lab_kernels.kda.layout import Layout, make_layout
from k3lab_kernels.kda.recurrent import recurrent_forward
from k3lab_kernels.kda.tiles import tile_rows

PART_ELEMENTS = 1 << 17  # of one tensor of a part; the fastest of 2^17 to 2^20 with two threads


def _autocast_off(device: torch.device):
    return torch.autocast(device.type, enabled=False)


def _initial(layout: Layout, initial_state: Tensor | None, v: Tensor, K: int) -> Tensor:
    """State of rank order [N·HV, K, V] in the dtype of accumulation; always a new tensor."""
    HV, V = v.shape[2:]
    dtype = accumulation_dtype(v)
    if initial_state is None:
        return torch.zeros(layout.sequences * HV, K, V, dtype=dtype, device=v.device)
    return layout.rank(initial_state.to(dtype)).reshape(-1, K, V).clone()


def _pad_rows(x: Tensor, rows: int) -> Tensor:
    return x if len(x) == rows else torch.cat((x, x.new_zeros(rows - len(x), *x.shape[1:])))


def _kept_rows(v: Tensor, cu_seqlens: Tensor | None, chunk_size: int) -> int:
    """Rows of kept intermediates: a bound on the number of chunk × head that does not read the offsets."""
    B, T, HV, _ = v.shape
    if cu_seqlens is None:
        return B * -(-T // chunk_size) * HV
    return (T // chunk_size + cu_seqlens.shape[0] - 1) * HV


def _parts(v: Tensor, K: int, chunk_size: int, cu_seqlens: Tensor | None) -> list[slice]:
    """Slices of the batch to work on at a time: on a CPU as many as stay in the cache; results do not depend on it."""
    B, T, HV, V = v.shape
    if cu_seqlens is not None or v.device.type != "cpu" or B == 0:
        return [slice(0, B)]
    rows = HV * -(-T // chunk_size) * chunk_size
    size = max(1, PART_ELEMENTS // max(1, rows * max(K, V, chunk_size)))
    return [slice(lo, min(lo + size, B)) for lo in range(0, B, size)]


@torch.library.custom_op("k3lab::kda_chunk", mutates_args=())
def _kda_chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    cu_seqlens_cpu: Tensor | None,
    scale: float,
    chunk_size: int,
    tile: int,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """q, k, g [B,T,HV,K], v [B,T,HV,V], beta [B,T,HV] → o, final state, and kept squares, rows and states."""
    with _autocast_off(v.device):
        results = [
            _forward(
                q[part], k[part], v[part], g[part], beta[part],
                initial_state if initial_state is None or cu_seqlens is not None else initial_state[part],
                cu_seqlens, cu_seqlens_cpu, scale, chunk_size, tile, keep,
            )
            for part in _parts(v, q.shape[-1], chunk_size, cu_seqlens)
        ]  # fmt: skip
    if len(results) == 1:
        return results[0]
    o, final_state, squares, values, states = zip(*results, strict=True)
    dim = 1 if keep else 0
    return torch.cat(o), torch.cat(final_state), torch.cat(squares, dim), torch.cat(values, dim), torch.cat(states)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, initial_state: Tensor | None,
    cu_seqlens: Tensor | None, cu_seqlens_cpu: Tensor | None, scale: float, chunk_size: int, tile: int, keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    B, T, HV, V = v.shape
    K, dtype = q.shape[-1], accumulation_dtype(v)
    layout = make_layout(B, T, chunk_size, v.device, cu_seqlens, cu_seqlens_cpu)
    x = split_inputs(layout, q, k, v, g, beta, dtype)
    state = _initial(layout, initial_state, v, K)
    out, kept = chunk_forward(x, state, layout.steps(HV), scale, tile)
    o = layout.join(out, HV).to(v.dtype).contiguous()
    final_state = layout.unrank(state.view(layout.sequences, HV, K, V))
    if not keep:
        return o, final_state, v.new_empty(0), v.new_empty(0), v.new_empty(0)
    rows = _kept_rows(v, cu_seqlens, chunk_size)
    squares = torch.stack([_pad_rows(s, rows) for s in (kept.qk, kept.kk, kept.inverse)])
    values = torch.stack([_pad_rows(s, rows) for s in (kept.error, kept.value)])
    return o, final_state, squares, values, _pad_rows(kept.state, rows)


@_kda_chunk.register_fake
def _(q, k, v, g, beta, initial_state, cu_seqlens, cu_seqlens_cpu, scale, chunk_size, tile, keep):
    B, _, HV, V = v.shape
    K, dtype = q.shape[-1], accumulation_dtype(v)
    N = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    o = torch.empty_like(v, memory_format=torch.contiguous_format)
    final_state = v.new_empty(N, HV, K, V, dtype=dtype)
    if not keep:
        return o, final_state, v.new_empty(0), v.new_empty(0), v.new_empty(0)
    rows, C = _kept_rows(v, cu_seqlens, chunk_size), chunk_size
    squares, values = v.new_empty(3, rows, C, C, dtype=dtype), v.new_empty(2, rows, C, V, dtype=dtype)
    return o, final_state, squares, values, v.new_empty(rows, K, V, dtype=dtype)


@torch.library.custom_op("k3lab::kda_chunk_backward", mutates_args=())
def _kda_chunk_backward(
    d_o: Tensor,
    d_final_state: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    cu_seqlens_cpu: Tensor | None,
    squares: Tensor,
    values: Tensor,
    states: Tensor,
    scale: float,
    chunk_size: int,
    tile: int,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, g, beta in their dtypes, and of the initial state in its own (or fp32)."""
    results, row = [], 0
    with _autocast_off(v.device):
        for part in _parts(v, q.shape[-1], chunk_size, cu_seqlens):
            n = slice(None) if cu_seqlens is not None else part
            rows = slice(row, row + _kept_rows(v[part], cu_seqlens, chunk_size))
            row = rows.stop
            results.append(
                _backward_part(
                    d_o[part], None if d_final_state is None else d_final_state[n],
                    q[part], k[part], v[part], g[part], beta[part],
                    None if initial_state is None else initial_state[n], cu_seqlens, cu_seqlens_cpu,
                    (squares[:, rows], values[:, rows], states[rows]) if keep else None, scale, chunk_size, tile,
                )
            )  # fmt: skip
    if len(results) == 1:
        return results[0]
    d_q, d_k, d_v, d_g, d_beta, d_state = (torch.cat(d) for d in zip(*results, strict=True))
    return d_q, d_k, d_v, d_g, d_beta, d_state


def _backward_part(
    d_o: Tensor, d_final_state: Tensor | None, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor,
    initial_state: Tensor | None, cu_seqlens: Tensor | None, cu_seqlens_cpu: Tensor | None,
    keep: tuple[Tensor, Tensor, Tensor] | None, scale: float, chunk_size: int, tile: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    B, T, HV, V = v.shape
    K, dtype = q.shape[-1], accumulation_dtype(v)
    layout = make_layout(B, T, chunk_size, v.device, cu_seqlens, cu_seqlens_cpu)
    x = split_inputs(layout, q, k, v, g, beta, dtype)
    kept, M = None, layout.chunks * HV
    if keep is not None:
        (qk, kk, inverse), (error, value) = keep[0][:, :M].unbind(0), keep[1][:, :M].unbind(0)
        kept = Kept(qk, kk, inverse, error, value, keep[2][:M])
    state, d_state = _initial(layout, initial_state, v, K), _initial(layout, d_final_state, v, K)
    d_x = chunk_backward(layout.split(d_o, dtype), d_state, x, state, kept, layout.steps(HV), scale, tile)
    d_q, d_k, d_v, d_g, d_beta = (
        layout.join(d, HV).to(like.dtype).contiguous() for d, like in zip(d_x, (q, k, v, g, beta), strict=True)
    )
    d_state = layout.unrank(d_state.view(layout.sequences, HV, K, V))
    d_state = d_state if initial_state is None else d_state.to(initial_state.dtype)
    return d_q, d_k, d_v, d_g, d_beta.squeeze(-1), d_state


@_kda_chunk_backward.register_fake
def _(
    d_o, d_final_state, q, k, v, g, beta, initial_state, cu_seqlens, cu_seqlens_cpu, squares, values, states, scale,
    chunk_size, tile, keep,
):  # fmt: skip
    N = v.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    dtype = accumulation_dtype(v) if initial_state is None else initial_state.dtype
    grads = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v, g, beta)]
    return *grads, v.new_empty(N, v.shape[2], q.shape[-1], v.shape[3], dtype=dtype)


def _save(ctx, inputs, output) -> None:
    *tensors, scale, chunk_size, tile, keep = inputs
    ctx.save_for_backward(*tensors, *output[2:])
    ctx.options = (scale, chunk_size, tile, keep)
    ctx.mark_non_differentiable(*output[2:])
    ctx.set_materialize_grads(False)


def _backward(ctx, d_o, d_final_state, *_):
    tensors = ctx.saved_tensors
    if d_o is None and d_final_state is None:
        return (None,) * 12
    d_o = torch.zeros_like(tensors[2]) if d_o is None else d_o
    grads = torch.ops.k3lab.kda_chunk_backward(d_o, d_final_state, *tensors, *ctx.options)
    d_initial = None if tensors[5] is None else grads[5]
    return *grads[:5], d_initial, *(None,) * 6


_kda_chunk.register_autograd(_backward, setup_context=_save)


def chunk_kda(
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
    """Kimi Delta Attention, chunk by chunk; see `naive_recurrent_kda` for the recurrence.

    q, k [B,T,H,K]; v [B,T,HV,V]; g [B,T,HV,K] log decay; beta [B,T,HV]; HV a multiple of H. q, k and v share one
    dtype; g and beta have it or fp32. `scale` defaults to K^-1/2.
    initial_state [N,HV,K,V] (`state_v_first`: [N,HV,V,K], also of the results), any float dtype.
    use_gate_in_kernel: g holds raw logits; the log decay is `lower_bound·σ(e^A_log·(g+dt_bias))`, or
    `−e^A_log·softplus(g+dt_bias)` without a bound. A_log HV elements (may be None with a bound), dt_bias HV·K or None;
    both are read only then. lower_bound in [−10, 0): the gate in the kernel then takes the path that needs it.
    Ready gates are right whatever bound or `safe_gate` says of them, at the cost of the path for any gate.
    use_beta_sigmoid_in_kernel: beta holds logits; allow_neg_eigval doubles the sigmoid.
    disable_recompute: keep intermediates for the backward pass instead of making them again.
    cu_seqlens [N+1] int32/int64: offsets of sequences packed into a batch of one; cu_seqlens_cpu: its host copy.
    chunk_size: 32 or 64.

    Returns o [B,T,HV,V] in v's dtype, the final state fp32 (fp64 for fp64) or None, and with
    `return_intermediate_states` (no gradients) the state before each chunk [B,NT,HV,K,V].
    Raises ValueError or TypeError naming the argument. Source: Kimi Linear (arXiv 2510.26692), section 3.
    """
    check_arguments(
        q, k, v, g, beta, scale=scale, initial_state=initial_state, allow_neg_eigval=allow_neg_eigval,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel, use_gate_in_kernel=use_gate_in_kernel,
        lower_bound=lower_bound, state_v_first=state_v_first, cu_seqlens=cu_seqlens,
        cu_seqlens_cpu=cu_seqlens_cpu, A_log=A_log, dt_bias=dt_bias, chunk_size=chunk_size,
    )  # fmt: skip
    inputs = (q, k, v, g, beta, initial_state, A_log, dt_bias)
    differentiable = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    if return_intermediate_states and differentiable:
        raise ValueError("return_intermediate_states: has no gradients; call it under torch.no_grad()")
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    tile = tile_rows(lower_bound if use_gate_in_kernel else None)
    with _autocast_off(v.device):
        q, k, g, beta = prepare(
            q, k, v, g, beta, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
            use_gate_in_kernel=use_gate_in_kernel, use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
            allow_neg_eigval=allow_neg_eigval, lower_bound=lower_bound, A_log=A_log, dt_bias=dt_bias,
        )  # fmt: skip
        if initial_state is not None and state_v_first:
            initial_state = initial_state.mT
        keep = return_intermediate_states or (disable_recompute and differentiable)
        o, state, _, _, kept_states = torch.ops.k3lab.kda_chunk(
            q, k, v, g, beta, initial_state, cu_seqlens, cu_seqlens_cpu, scale, chunk_size, tile, keep
        )
    final_state = (state.mT.contiguous() if state_v_first else state) if output_final_state else None
    if not return_intermediate_states:
        return o, final_state
    T, HV, parts = v.shape[1], v.shape[2], []
    for part in _parts(v, q.shape[-1], chunk_size, cu_seqlens):
        layout = make_layout(len(v[part]), T, chunk_size, v.device, cu_seqlens, cu_seqlens_cpu)
        rows = _kept_rows(v[part], cu_seqlens, chunk_size)
        parts.append(layout.chunk_states(kept_states[:rows], HV))
        kept_states = kept_states[rows:]
    states = torch.cat(parts)
    return o, final_state, (states.mT if state_v_first else states).contiguous()


def fused_recurrent_kda(
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
    """Kimi Delta Attention token by token, for decoding; arguments and results as in `chunk_kda`, differentiable.

    `disable_recompute` has nothing to do here: autograd keeps each step. `chunk_size` only says before which tokens
    `return_intermediate_states` reports the state.
    """
    check_arguments(
        q, k, v, g, beta, scale=scale, initial_state=initial_state, allow_neg_eigval=allow_neg_eigval,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel, use_gate_in_kernel=use_gate_in_kernel,
        lower_bound=lower_bound, state_v_first=state_v_first, cu_seqlens=cu_seqlens,
        cu_seqlens_cpu=cu_seqlens_cpu, A_log=A_log, dt_bias=dt_bias, chunk_size=chunk_size,
    )  # fmt: skip
    B, T, HV, V = v.shape
    K = q.shape[-1]
    with _autocast_off(v.device):
        q, k, g, beta = prepare(
            q, k, v, g, beta, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
            use_gate_in_kernel=use_gate_in_kernel, use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
            allow_neg_eigval=allow_neg_eigval, lower_bound=lower_bound, A_log=A_log, dt_bias=dt_bias,
        )  # fmt: skip
        if initial_state is not None and state_v_first:
            initial_state = initial_state.mT
        layout = make_layout(B, T, 1, v.device, cu_seqlens, cu_seqlens_cpu)
        state = _initial(layout, initial_state, v, K)
        every = chunk_size if return_intermediate_states else None
        o, state, kept = recurrent_forward(
            q, k, v, g, beta, state, layout, K**-0.5 if scale is None else float(scale), every
        )
        state = layout.unrank(state.view(layout.sequences, HV, K, V))
    o = o.to(v.dtype).contiguous()
    final_state = (state.mT.contiguous() if state_v_first else state) if output_final_state else None
    if not return_intermediate_states:
        return o, final_state
    coarse = make_layout(B, T, chunk_size, v.device, cu_seqlens, cu_seqlens_cpu)
    rows = [s[: n * HV] for s, n in zip(kept, coarse.counts, strict=True)]
    states = coarse.chunk_states(torch.cat(rows) if rows else state.new_zeros(0, K, V), HV)
    return o, final_state, (states.mT if state_v_first else states).contiguous()
