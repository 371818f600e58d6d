"""Linear attention with one decay a head, chunk by chunk and token by token: a memory that is written without reading.

`S ← e^g S + k vᵀ;  o = scale · Sᵀq` a head, the recurrence of Mamba-2 (arXiv 2405.21060, Eq. 16) and of gated
linear attention with a scalar gate. In a chunk, `o = scale · [(q·e^{g_1+…+g_i}) S + tril(q kᵀ · e^{g_j+1+…+g_i}) v]`.
Everything is computed in fp32 (fp64 for fp64), and differentiable by autograd.

B batch, T time, H heads, K key dim, V value dim, N chunks, C rows of a chunk.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def chunk_linear_attention(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, g_BTH: Tensor, scale: float, state_BHKV: Tensor | None, chunk: int
) -> tuple[Tensor, Tensor]:
    """Return o [B,T,H,V] in the dtype of v and the memory after the last token [B,H,K,V].

    g ≤ 0 is the log decay before a token is written, −inf to forget all. No state means an empty memory.
    """
    time, dtype = v_BTHV.shape[1], v_BTHV.dtype
    with torch.autocast(v_BTHV.device.type, enabled=False):
        q, k, v, g = (_chunks(x, chunk) for x in (q_BTHK, k_BTHK, v_BTHV, g_BTH.unsqueeze(-1)))
        decay_BHNCC = segment_decays(g.squeeze(-1))
        first_BHNC = g[..., 0, :].exp() * decay_BHNCC[..., :, 0]  # from the chunk's start to each row
        last_BHNC = decay_BHNCC[..., -1, :]  # from each row to the chunk's end
        o_BHNCV = ((q @ k.mT) * decay_BHNCC) @ v
        written_BHNKV = (k * last_BHNC.unsqueeze(-1)).mT @ v
        carry_BHN11 = first_BHNC[..., -1, None, None]
        if state_BHKV is None:
            state_BHKV = v.new_zeros(*written_BHNKV.shape[:2], *written_BHNKV.shape[3:])
        state_BHKV = state_BHKV.to(v.dtype)
        before = []
        for n in range(written_BHNKV.shape[2]):
            before.append(state_BHKV)
            state_BHKV = carry_BHN11[:, :, n] * state_BHKV + written_BHNKV[:, :, n]
        o_BHNCV = o_BHNCV + (q * first_BHNC.unsqueeze(-1)) @ torch.stack(before, dim=2)
        o_BTHV = (scale * o_BHNCV).flatten(2, 3)[:, :, :time].transpose(1, 2)
        return o_BTHV.to(dtype).contiguous(), state_BHKV


def recurrent_linear_attention(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, g_BTH: Tensor, scale: float, state_BHKV: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The same token by token, for decoding."""
    dtype = v_BTHV.dtype
    with torch.autocast(v_BTHV.device.type, enabled=False):
        q, k, v, g = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (q_BTHK, k_BTHK, v_BTHV, g_BTH))
        if state_BHKV is None:
            state_BHKV = v.new_zeros(v.shape[0], *v.shape[2:3], k.shape[-1], v.shape[-1])
        state_BHKV = state_BHKV.to(v.dtype)
        outputs = []
        for t in range(v.shape[1]):
            state_BHKV = g[:, t, :, None, None].exp() * state_BHKV + k[:, t, :, :, None] * v[:, t, :, None, :]
            outputs.append(scale * (q[:, t, :, None, :] @ state_BHKV).squeeze(-2))
        return torch.stack(outputs, dim=1).to(dtype), state_BHKV


def segment_decays(g_C: Tensor) -> Tensor:
    """[…,C] → […,C,C] with e^{g_j+1 + … + g_i} at (i, j) and 0 above the diagonal.

    Sums are built up by doubling, never as differences of running sums: −inf gives 0 and costs its neighbours
    no digits, and no row depends on a later one.
    """
    size = g_C.shape[-1]
    below = torch.ones(size, size, dtype=torch.bool, device=g_C.device).tril(-1)
    sums = g_C.unsqueeze(-1).expand(*g_C.shape, size).masked_fill(~below, 0.0)
    step = 1
    while step < size:
        sums = sums + F.pad(sums[..., :-step, :], (0, 0, step, 0))
        step *= 2
    return sums.exp().tril()


def _chunks(x_BTHx: Tensor, chunk: int) -> Tensor:
    """[B,T,H,…] → [B,H,N,C,…]; rows past the end are zero, which writes nothing and decays nothing."""
    x_BTHx = x_BTHx.to(torch.promote_types(x_BTHx.dtype, torch.float32))
    missing = -x_BTHx.shape[1] % chunk
    if missing:
        x_BTHx = F.pad(x_BTHx, (0, 0, 0, 0, 0, missing))
    return x_BTHx.transpose(1, 2).unflatten(2, (-1, chunk))
