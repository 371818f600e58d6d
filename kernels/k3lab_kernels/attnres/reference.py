"""Attention over depth written out: the oracle for every faster path. Differentiable by autograd, any dtype.

Shapes: L sources, D hidden. Source: Attention Residuals (arXiv 2603.15031).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, stack
from torch.nn import functional as F

from k3lab_kernels.attnres.checks import check_number, check_sources, check_vector, compute_dtype


def naive_attnres(
    query: Tensor,
    residuals: Sequence[Tensor] | Tensor,
    rms_weight: Tensor,
    output_rms_weight: Tensor | None = None,
    rms_eps: float = 1e-6,
    scale: float = 1.0,
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`Σ_i softmax_i(scale · query · RMSNorm(v_i)) v_i`; arguments and results as in `fused_attnres`."""
    sources = check_sources("residuals", residuals)
    D = (sources[0].shape[-1],)
    check_vector("query", query, D, "[D]", sources[0].device)
    check_vector("rms_weight", rms_weight, D, "[D]", sources[0].device)
    if output_rms_weight is not None:
        check_vector("output_rms_weight", output_rms_weight, D, "[D]", sources[0].device)
    eps = check_number("rms_eps", rms_eps, positive=True)
    scale = check_number("scale", scale, positive=False)

    dtype = compute_dtype(sources[0])
    values = stack([x.to(dtype) for x in sources])
    keys = F.rms_norm(values, D, rms_weight.to(dtype), eps)
    weights = ((keys * query.to(dtype)).sum(-1) * scale).softmax(0)
    mix = (weights.unsqueeze(-1) * values).sum(0)
    if output_rms_weight is not None:
        mix = F.rms_norm(mix, D, output_rms_weight.to(dtype), eps)
    mix = mix.to(sources[0].dtype)
    return (mix, weights) if return_weights else mix
