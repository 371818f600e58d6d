"""One token at a time for all sequences at once: the decoding path. Differentiable by autograd.

Shapes: N sequence, H value head, K key dim, V value dim, T time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from k3lab_kernels.kda.layout import Layout


def recurrent_forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state_NHKV: Tensor, layout: Layout, scale: float,
    keep_every: int | None,
) -> tuple[Tensor, Tensor, list[Tensor]]:  # fmt: skip
    """Outputs [B, T, H, V], final states [N·H, K, V] and the states [N·H, K, V] before every `keep_every`-th token.

    q, k, g [B, T, H, K], v [B, T, H, V], beta [B, T, H]; the layout has chunks of one token.
    """
    H, dtype = v.shape[2], state_NHKV.dtype
    q, k, v, g, beta = (layout.split(x, dtype) for x in (q, k, v, g, beta.unsqueeze(-1)))
    q, decay_M1K = q * scale, g.exp()
    outputs, kept = [], []
    for t, (lo, hi) in enumerate(layout.steps(H)):
        if keep_every is not None and t % keep_every == 0:
            kept.append(state_NHKV)
        state = state_NHKV[: hi - lo] * decay_M1K[lo:hi].mT
        k_t = k[lo:hi]
        error = v[lo:hi] - k_t @ state
        state = state + k_t.mT * (beta[lo:hi] * error)
        outputs.append(q[lo:hi] @ state)
        ended = state_NHKV[hi - lo :]
        state_NHKV = torch.cat((state, ended)) if ended.shape[0] else state
    out = torch.cat(outputs) if outputs else v
    return layout.join(out, H), state_NHKV, kept
