"""Public attention-residual functions: one pass over all sources, and the two-phase schedule of block residuals.

Phase 1 (`attnres_inter`) mixes the completed blocks for all queries of a block at once; phase 2 (`attnres_merge`)
adds the running partial sum to one of those mixes. Source: Attention Residuals (arXiv 2603.15031).
Shapes: L sources, S queries, D hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from k3lab_kernels.attnres.checks import check_number, check_sources, check_vector, compute_dtype
from k3lab_kernels.attnres.mix import DepthMerge, DepthMix


def fused_attnres(
    query: Tensor,
    residuals: Sequence[Tensor] | Tensor,
    rms_weight: Tensor,
    output_rms_weight: Tensor | None = None,
    rms_eps: float = 1e-6,
    scale: float = 1.0,
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`Σ_i softmax_i(scale · query · RMSNorm(v_i)) v_i` over the sources, each token on its own.

    query [D]; residuals L tensors [..., D] or one [L, ..., D], all of one shape, dtype and device; rms_weight [D] of
    the key norm. With output_rms_weight [D] the mix is RMS-normalised too. fp32 inside (fp64 for fp64), one cast.
    One source gives a new tensor equal to it. Returns o [..., D], and with `return_weights` also p [L, ...] fp32.
    Raises ValueError or TypeError naming the argument.
    """
    sources = check_sources("residuals", residuals)
    shape, device = (sources[0].shape[-1],), sources[0].device
    check_vector("query", query, shape, "[D]", device)
    check_vector("rms_weight", rms_weight, shape, "[D]", device)
    if output_rms_weight is not None:
        check_vector("output_rms_weight", output_rms_weight, shape, "[D]", device)
    eps = check_number("rms_eps", rms_eps, positive=True)
    scale = check_number("scale", scale, positive=False)
    mix, p, _ = DepthMix.apply(eps, scale, query[None], rms_weight[None], output_rms_weight, *sources)
    return (mix, p[0]) if return_weights else mix


def attnres_inter(
    queries: Tensor, rms_weights: Tensor, blocks: Sequence[Tensor] | Tensor, rms_eps: float = 1e-6
) -> tuple[list[Tensor], Tensor]:
    """Mixes over the completed blocks for S queries [S, D] with key-norm weights [S, D].

    Returns S tensors [..., D], each normalised over the blocks, and the log-sum-exp of their logits [S, ...] fp32
    (fp64 for fp64), with which `attnres_merge` adds another source.
    """
    sources = check_sources("blocks", blocks)
    if not isinstance(queries, Tensor):
        raise TypeError(f"queries: must be a tensor of shape [S, D], got {type(queries).__name__}")
    if queries.dim() != 2 or queries.shape[0] == 0:
        raise ValueError(f"queries: must have shape [S, D] with S at least 1, got {list(queries.shape)}")
    S, device = queries.shape[0], sources[0].device
    shape = (S, sources[0].shape[-1])
    check_vector("queries", queries, shape, "[S, D]", device)
    check_vector("rms_weights", rms_weights, shape, "[S, D]", device)
    eps = check_number("rms_eps", rms_eps, positive=True)
    results = DepthMix.apply(eps, 1.0, queries, rms_weights, None, *sources)
    return list(results[:S]), results[S + 1]


def attnres_merge(
    query: Tensor, rms_weight: Tensor, partial: Tensor, inter: Tensor, lse: Tensor, rms_eps: float = 1e-6
) -> Tensor:
    """The mix over the blocks behind `inter` and over `partial`, equal to one pass over all of them.

    query, rms_weight [D]; partial, inter [..., D] of one dtype; lse [...] fp32 (fp64 for fp64) of the blocks' logits.
    """
    (partial,) = check_sources("partial", [partial])
    shape, device = (partial.shape[-1],), partial.device
    check_vector("query", query, shape, "[D]", device)
    check_vector("rms_weight", rms_weight, shape, "[D]", device)
    check_vector("inter", inter, tuple(partial.shape), "that of partial", device)
    if inter.dtype != partial.dtype:
        raise ValueError(f"inter: must have the dtype of partial, {partial.dtype}, got {inter.dtype}")
    check_vector("lse", lse, tuple(partial.shape[:-1]), "that of partial without D", device)
    if lse.dtype != compute_dtype(partial):
        raise ValueError(f"lse: dtype must be {compute_dtype(partial)}, got {lse.dtype}")
    eps = check_number("rms_eps", rms_eps, positive=True)
    return DepthMerge.apply(eps, query, rms_weight, partial, inter, lse)
