"""Causal scaled dot-product attention for queries that may continue a longer sequence of keys.

B batch, T queries, L keys (the last T belong to the queries), H heads, K key dim, V value dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from k3lab.mixer.documents import Documents


def causal_attention(
    q_BTHK: Tensor, k_BLHK: Tensor, v_BLHV: Tensor, scale: float, documents: Documents | None = None
) -> Tensor:
    """Query t attends to keys 0 … L−T+t → [B,T,H,V]; H of keys and values may be 1 (shared by all heads).

    With documents, L = T and a query attends to those of its own document alone.
    """
    heads, width = q_BTHK.shape[2], v_BLHV.shape[-1]
    q_BHTK = q_BTHK.transpose(1, 2)
    k_BHLK = k_BLHK.transpose(1, 2).expand(-1, heads, -1, -1)
    v_BHLV = v_BLHV.transpose(1, 2).expand(-1, heads, -1, -1)
    new, seen = q_BTHK.shape[1], k_BLHK.shape[1]
    mask = None
    if documents is not None:
        number_BT = documents.number_BT
        mask = (number_BT[:, None, :, None] == number_BT[:, None, None, :]).tril()
    elif 1 < new < seen:  # SDPA's own causal mask is aligned to the first key
        mask = torch.ones(new, seen, dtype=torch.bool, device=q_BTHK.device).tril(seen - new)
    padding = q_BTHK.shape[-1] - width
    if padding > 0 and q_BTHK.device.type == "cpu":  # its flash kernel wants equal widths; zeros stay zeros
        v_BHLV = F.pad(v_BHLV, (0, padding))
    causal = mask is None and new == seen and new > 1
    o_BHTV = F.scaled_dot_product_attention(q_BHTK, k_BHLK, v_BHLV, mask, is_causal=causal, scale=scale)
    return o_BHTV[..., :width].transpose(1, 2)


def attention_flops(seq_len: int, heads: int, key_dim: int, value_dim: int) -> int:
    """Mean FLOPs a token of scores and weighted values over a causal sequence."""
    return (seq_len + 1) * heads * (key_dim + value_dim)  # (seq_len + 1) / 2 keys, two FLOPs an element
