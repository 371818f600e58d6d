"""Mixes of sources over depth for several queries at once, keeping references and a few numbers a token.

Backward keeps the sources themselves (no copies) and p [S,L,T], 1/rms [L,T] in fp32, and makes the rest again, one
source at a time: memory grows linearly with depth. Sums run in a fixed order; no atomics.
Shapes: S queries, L sources, T tokens (all leading dimensions), D hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from k3lab_kernels.attnres.checks import compute_dtype


def _rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.reshape(-1, x.shape[-1]).to(dtype)


def _autocast_off(x: Tensor):
    return torch.autocast(x.device.type, enabled=False)


def _inverse_rms(x_TD: Tensor, eps: float) -> Tensor:
    return (x_TD.square().mean(-1) + eps).rsqrt()


def _weighted(p_LT: Tensor, sources: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Σ_i p_i v_i [T, D]; the first term starts the sum, so that a single source keeps its bits."""
    mix_TD = p_LT[0].unsqueeze(-1) * _rows(sources[0], dtype)
    for p_T, x in zip(p_LT[1:], sources[1:], strict=True):
        mix_TD.addcmul_(p_T.unsqueeze(-1), _rows(x, dtype))
    return mix_TD


class DepthMix(Function):
    """(queries [S,D], weights [S,D], output weight [D] or None, sources) → S mixes, p [S,L,...], lse [S,...]."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        """arguments: eps, scale, queries, weights, out_weight, *sources. Not spelled out: where nothing needs a
        gradient, torch.compile drops ctx if there are as many arguments as names in this signature."""
        eps, scale, queries, weights, out_weight, *sources = arguments
        first, dtype = sources[0], compute_dtype(sources[0])
        L, S = len(sources), queries.shape[0]
        with _autocast_off(first):
            directions_DS = (queries.to(dtype) * weights.to(dtype) * scale).mT
            logits, inverses = [], []
            for x in sources:
                x_TD = _rows(x, dtype)
                inverses.append(_inverse_rms(x_TD, eps))
                logits.append((x_TD @ directions_DS).mT * inverses[-1])
            logits_SLT = torch.stack(logits, 1)
            p_SLT = logits_SLT.softmax(1) if L > 1 else torch.ones_like(logits_SLT)
            lse_ST = logits_SLT.logsumexp(1)
            mixes = []
            for s in range(S):
                mix_TD = _weighted(p_SLT[s], sources, dtype)
                if out_weight is not None:
                    mix_TD = torch.nn.functional.rms_norm(mix_TD, mix_TD.shape[-1:], out_weight.to(dtype), eps)
                mixes.append(mix_TD.to(first.dtype).view(first.shape))
        ctx.save_for_backward(queries, weights, out_weight, p_SLT, torch.stack(inverses), *sources)
        ctx.eps, ctx.scale = eps, scale
        ctx.set_materialize_grads(False)
        lead = first.shape[:-1]
        return *mixes, p_SLT.view(S, L, *lead).clone(), lse_ST.view(S, *lead)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        queries, weights, out_weight, p_SLT, inverse_LT, *sources = ctx.saved_tensors
        S, L, T = p_SLT.shape
        first, dtype, eps = sources[0], compute_dtype(sources[0]), ctx.eps
        d_p, d_lse = grads[S], grads[S + 1]
        if all(d is None for d in grads):
            return (None,) * (5 + L)
        with _autocast_off(first):
            directions_SD = queries.to(dtype) * weights.to(dtype) * ctx.scale
            d_out_weight = None if out_weight is None else torch.zeros_like(out_weight, dtype=dtype)
            d_mixes = []
            for s in range(S):
                d = grads[s]
                d_TD = first.new_zeros(T, first.shape[-1], dtype=dtype) if d is None else _rows(d, dtype)
                if out_weight is not None and d is not None:
                    d_TD, d_w = _norm_backward(d_TD, _weighted(p_SLT[s], sources, dtype), out_weight.to(dtype), eps)
                    d_out_weight = d_w
                d_mixes.append(d_TD)

            # d p of each source, then d logits
            d_weights = [torch.stack([(_rows(x, dtype) * d).sum(-1) for d in d_mixes]) for x in sources]
            d_p_SLT = torch.stack(d_weights, 1)
            if d_p is not None:
                d_p_SLT = d_p_SLT + d_p.reshape(S, L, T).to(dtype)
            d_logits_SLT = p_SLT * (d_p_SLT - (p_SLT * d_p_SLT).sum(1, keepdim=True)) if L > 1 else d_p_SLT * 0
            if d_lse is not None:
                d_logits_SLT = d_logits_SLT + p_SLT * d_lse.reshape(S, 1, T).to(dtype)

            d_directions_SD = torch.zeros_like(directions_SD)
            d_sources: list[Tensor | None] = []
            for i, x in enumerate(sources):
                x_TD, r_T = _rows(x, dtype), inverse_LT[i]
                d_dot_ST = d_logits_SLT[:, i] * r_T
                d_directions_SD += d_dot_ST @ x_TD
                if not ctx.needs_input_grad[5 + i]:
                    d_sources.append(None)
                    continue
                dot_ST = (x_TD @ directions_SD.mT).mT
                along_T = (d_dot_ST * dot_ST).sum(0) * r_T.square() / x_TD.shape[-1]
                d_TD = torch.addcmul(d_dot_ST.mT @ directions_SD, along_T.unsqueeze(-1), x_TD, value=-1)
                for s in range(S):
                    d_TD.addcmul_(p_SLT[s, i].unsqueeze(-1), d_mixes[s])
                d_sources.append(d_TD.to(first.dtype).view(first.shape))
            d_directions_SD *= ctx.scale
            d_queries = (d_directions_SD * weights.to(dtype)).to(queries.dtype)
            d_weight = (d_directions_SD * queries.to(dtype)).to(weights.dtype)
            if out_weight is not None and d_out_weight is not None:
                d_out_weight = d_out_weight.to(out_weight.dtype)
        return None, None, d_queries, d_weight, d_out_weight, *d_sources


def _norm_backward(d_TD: Tensor, x_TD: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Gradients of RMSNorm(x)·weight for x and weight."""
    r_T1 = _inverse_rms(x_TD, eps).unsqueeze(-1)
    unit_TD = x_TD * r_T1
    d_unit_TD = d_TD * weight_D
    d_x_TD = (d_unit_TD - unit_TD * (d_unit_TD * unit_TD).mean(-1, keepdim=True)) * r_T1
    return d_x_TD, (d_TD * unit_TD).sum(0)


class DepthMerge(Function):
    """(query [D], weight [D], partial, inter, lse) → the mix over the sources behind `inter` and over `partial`."""

    @staticmethod
    def forward(
        ctx: Any, eps: float, query: Tensor, weight: Tensor, partial: Tensor, inter: Tensor, lse: Tensor
    ) -> Tensor:
        dtype = compute_dtype(partial)
        with _autocast_off(partial):
            x_TD, inter_TD = _rows(partial, dtype), _rows(inter, dtype)
            r_T = _inverse_rms(x_TD, eps)
            logit_T = (x_TD @ (query.to(dtype) * weight.to(dtype))) * r_T
            share_T = (logit_T - lse.reshape(-1).to(dtype)).sigmoid()  # of `partial`; two-way softmax
            out_TD = (1 - share_T).unsqueeze(-1) * inter_TD
            out = out_TD.addcmul_(share_T.unsqueeze(-1), x_TD).to(partial.dtype).view(partial.shape)
        ctx.save_for_backward(query, weight, partial, inter, r_T, share_T)
        ctx.lse_shape, ctx.lse_dtype = lse.shape, lse.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        query, weight, partial, inter, r_T, share_T = ctx.saved_tensors
        dtype = compute_dtype(partial)
        with _autocast_off(partial):
            direction_D = query.to(dtype) * weight.to(dtype)
            d_TD, x_TD, inter_TD = (_rows(t, dtype) for t in (d_out, partial, inter))
            d_share_T = (d_TD * x_TD).sum(-1) - (d_TD * inter_TD).sum(-1)
            d_logit_T = share_T * (1 - share_T) * d_share_T
            d_dot_T = d_logit_T * r_T
            along_T = d_dot_T * (x_TD @ direction_D) * r_T.square() / x_TD.shape[-1]
            d_x_TD = d_dot_T.unsqueeze(-1) * direction_D
            d_x_TD.addcmul_(along_T.unsqueeze(-1), x_TD, value=-1).addcmul_(share_T.unsqueeze(-1), d_TD)
            d_inter_TD = (1 - share_T).unsqueeze(-1) * d_TD
            d_direction_D = d_dot_T @ x_TD
            d_query = (d_direction_D * weight.to(dtype)).to(query.dtype)
            d_weight = (d_direction_D * query.to(dtype)).to(weight.dtype)
        return (
            None, d_query, d_weight, d_x_TD.to(partial.dtype).view(partial.shape),
            d_inter_TD.to(inter.dtype).view(inter.shape), (-d_logit_T).to(ctx.lse_dtype).view(ctx.lse_shape),
        )  # fmt: skip
