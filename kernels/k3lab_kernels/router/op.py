"""Top-k routing on biased sigmoid scores, and the bias that balances the load: quantile balancing.

A token's margin for expert j is `r_ij = α_i − s_ij`, α_i the (k+1)-th largest of its biased scores s + b. The new
bias of j is the k/n quantile of its margins over the global batch, less the mean over experts. Margins are counted
in bins, so counts add over micro-batches and ranks and the bias is the same for every split of the batch.
Source: Kimi K3 report (arXiv 2607.24653), Eq. 13-14 and appendices C-D.
Shapes: T tokens, E experts, k chosen experts, B bins.
"""

from __future__ import annotations

import torch
from torch import Tensor

from k3lab_kernels.router.checks import check_k, check_no_nan, check_shape, check_tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _ordered_topk(values_TE: Tensor, k: int) -> Tensor:
    """Ids [T, k] of the k largest in descending order, ties to the lower id, the same on every device."""
    E = values_TE.shape[1]
    if values_TE.dtype == torch.float64:
        return torch.sort(values_TE, dim=1, descending=True, stable=True).indices[:, :k]
    bits = (values_TE + 0.0).view(torch.int32)  # + 0.0: −0 and 0 are a tie
    rank = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(torch.int64)  # integers in the order of the floats
    down_E = torch.arange(E - 1, -1, -1, device=values_TE.device)
    keys = torch.topk(rank * E + down_E, k, dim=1, sorted=True).values
    return E - 1 - keys.remainder(E)


def _bin_scale(bias: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Lower bound and bin width [..., 1] in fp64: margins of sigmoid scores lie in [min b − 1, max b + 1]."""
    low = bias.double().amin(-1, keepdim=True)
    high = bias.double().amax(-1, keepdim=True)
    return low - 1, (high - low + 2) / bins


def topk_route(
    logits: Tensor, bias: Tensor, k: int, *, histogram: Tensor | None = None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Choose k experts a token by `σ(logits) + bias`, and return their unbiased scores.

    logits [T, E] float; bias [E] fp32 (or the dtype of fp64 logits), without gradient; 1 ≤ k < E.
    histogram [E, B] int32: every token that `mask` [T] bool keeps adds one count to every expert, in place, in the
    left-closed bin of its margin. Masked tokens are routed like others.
    Returns ids [T, k] int64 in descending biased order, ties to the lower id, and scores [T, k] fp32 (fp64 for fp64
    logits), through which gradients flow. Raises ValueError or TypeError naming the argument; NaN is looked for on
    a CPU only.
    """
    check_tensor("logits", logits, "[T, E]", 2, FLOATS)
    T, E = logits.shape
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    check_tensor("bias", bias, "[E]", 1, (torch.float32, dtype) if dtype != torch.float32 else (torch.float32,))
    check_shape("bias", bias, (E,), "[E]", logits.device)
    check_k(k, E)
    if mask is not None:
        check_tensor("mask", mask, "[T]", 1, (torch.bool,))
        check_shape("mask", mask, (T,), "[T]", logits.device)
    if histogram is not None:
        check_tensor("histogram", histogram, "[E, B]", 2, (torch.int32,))
        check_shape("histogram", histogram, (E, histogram.shape[1]), "[E, B]", logits.device)
        if histogram.shape[1] == 0:
            raise ValueError("histogram: must have at least one bin, got shape " + str(list(histogram.shape)))
    check_no_nan("logits", logits)
    check_no_nan("bias", bias)

    scores_TE = logits.to(dtype).sigmoid()
    with torch.no_grad():
        biased_TE = scores_TE.detach() + bias.detach().to(dtype)
        ranked = _ordered_topk(biased_TE, k + (histogram is not None))
        ids_Tk = ranked[:, :k].contiguous()
        if histogram is not None:
            _count_margins(histogram, scores_TE.detach(), biased_TE.gather(1, ranked[:, k:]), bias.detach(), mask)
    return ids_Tk, scores_TE.gather(1, ids_Tk)


def _count_margins(histogram: Tensor, scores_TE: Tensor, cutoff_T1: Tensor, bias: Tensor, mask: Tensor | None) -> None:
    """Add every token's margins to the histogram [E, B]; sizes and order of the work do not depend on values."""
    E, B = histogram.shape
    low, width = _bin_scale(bias, B)
    position_TE = ((cutoff_T1.double() - scores_TE.double()) - low) / width
    bin_TE = position_TE.floor().nan_to_num(0.0).clamp(0, B - 1).to(torch.int64)
    cell_TE = bin_TE + torch.arange(E, device=bias.device) * B
    one_TE = torch.ones_like(cell_TE, dtype=torch.int32)
    if mask is not None:
        one_TE = one_TE * mask.unsqueeze(1)
    counts = torch.zeros(E * B, dtype=torch.int32, device=bias.device)
    histogram += counts.index_add_(0, cell_TE.flatten(), one_TE.flatten()).view(E, B)


def quantile_bias(histogram: Tensor, bias: Tensor, k: int) -> Tensor:
    """The bias that replaces `bias` after a global batch, from its pooled histogram of margins.

    histogram [..., E, B] int32 or int64, counted under `bias`; bias [..., E] fp32 or fp64; 1 ≤ k < E. Layers are the
    leading dimensions. An expert with m tokens gets position `j + (t − before_j)/count_j`, t = m·k/E, in the first
    bin j whose cumulative count reaches ⌈t⌉. A layer without counts keeps its bias. Returns a new tensor like bias.
    """
    ndim = histogram.dim() if isinstance(histogram, Tensor) and histogram.dim() >= 2 else 2
    check_tensor("histogram", histogram, "[..., E, B]", ndim, (torch.int32, torch.int64))
    check_tensor("bias", bias, "[..., E]", ndim - 1, (torch.float32, torch.float64))
    check_shape("bias", bias, tuple(histogram.shape[:-1]), "[..., E]", histogram.device)
    E, B = histogram.shape[-2:]
    if B == 0:
        raise ValueError(f"histogram: must have at least one bin, got shape {list(histogram.shape)}")
    check_k(k, E)
    check_no_nan("bias", bias)
    counts = histogram.to(torch.int64)
    reached = counts.cumsum(-1)
    tokens = reached[..., -1:]
    needed = (tokens * k + (E - 1)) // E
    j = (reached < needed).sum(-1, keepdim=True)
    in_bin = counts.gather(-1, j)
    before = reached.gather(-1, j) - in_bin
    target = (tokens * k).double() / E
    position = j + (target - before) / in_bin.clamp(min=1)
    low, width = _bin_scale(bias.detach(), B)
    new = low + width * position.squeeze(-1)
    new = (new - new.mean(-1, keepdim=True)).to(bias.dtype)
    return torch.where((tokens > 0).any(-2), new, bias.detach())


def exact_quantile_bias(scores: Tensor, bias: Tensor, k: int) -> Tensor:
    """`quantile_bias` without bins: the ⌈T·k/E⌉-th smallest margin of each expert, less the mean over experts.

    scores [T, E] fp32 or fp64, unbiased; bias [E]; 1 ≤ k < E. Before the mean is removed,
    `#(r < b') ≤ T·k/E ≤ #(r ≤ b')` for every expert. No tokens: the old bias. Returns a new tensor like bias.
    """
    check_tensor("scores", scores, "[T, E]", 2, (torch.float32, torch.float64))
    check_tensor("bias", bias, "[E]", 1, (torch.float32, torch.float64))
    check_shape("bias", bias, (scores.shape[1],), "[E]", scores.device)
    T, E = scores.shape
    check_k(k, E)
    check_no_nan("scores", scores)
    check_no_nan("bias", bias)
    if T == 0:
        return bias.detach().clone()
    scores = scores.detach()
    biased_TE = scores + bias.detach().to(scores.dtype)
    cutoff_T1 = biased_TE.gather(1, _ordered_topk(biased_TE, k + 1)[:, k:])
    margins_TE = (cutoff_T1.double() - scores.double()).sort(dim=0).values
    new = margins_TE[-(-T * k // E) - 1]
    return (new - new.mean()).to(bias.dtype)
