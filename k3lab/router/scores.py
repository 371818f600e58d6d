"""From logits to scores and chosen experts, for routers that offer both kinds of score.

T tokens, E experts, k experts a token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from k3lab_kernels.router import topk_route

SCORES = ("sigmoid", "softmax")


def all_scores(logits_TE: Tensor, score: str) -> Tensor:
    """Scores of every expert, [T,E] in the dtype of the logits."""
    return torch.sigmoid(logits_TE) if score == "sigmoid" else torch.softmax(logits_TE, dim=-1)


def choose(logits_TE: Tensor, bias_E: Tensor | None, k: int, score: str) -> tuple[Tensor, Tensor]:
    """Top k of score + bias, best first and ties to the lower id → ids [T,k] int64, unbiased scores [T,k]."""
    if bias_E is None:
        bias_E = torch.zeros(logits_TE.shape[1], dtype=torch.float32, device=logits_TE.device)
    if score == "sigmoid":
        return topk_route(logits_TE, bias_E, k)
    scores_TE = all_scores(logits_TE, score)
    with torch.no_grad():
        # a stable sort, because torch.topk breaks ties differently from one device to another
        order_TE = torch.sort(scores_TE + bias_E, dim=-1, descending=True, stable=True).indices
        ids_Tk = order_TE[:, :k].contiguous()
    return ids_Tk, scores_TE.gather(1, ids_Tk)
