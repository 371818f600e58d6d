"""Routed experts: sort the chosen (token, expert) pairs by expert, run grouped matmuls, add the results up.

T tokens, k experts a token, N = T·k rows, D width of the experts, F hidden width, E experts.

No step needs the host: sizes are fixed and group ends stay on the device. The permutation is stable and all
sums run in a fixed order, so a repeat gives the same bits. There are exactly N rows, so none lies past the
last group.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from k3lab.ffn.gated import ACTIVATIONS
from k3lab.ffn.grouped import grouped_linear


class Order(NamedTuple):
    """The permutation that groups N rows by expert."""

    row_N: Tensor  # int64, sorted place → row t·k + choice
    place_N: Tensor  # int64, its inverse
    ends_E: Tensor  # int32, one past the last sorted place of each expert


@torch.no_grad()
def group_by_expert(ids_Tk: Tensor, experts: int) -> Order:
    """Stable order of the flattened choices by expert id."""
    sorted_N, row_N = torch.sort(ids_Tk.flatten(), stable=True)
    place_N = torch.empty_like(row_N)
    place_N.scatter_(0, row_N, torch.arange(row_N.numel(), device=row_N.device))
    every_E = torch.arange(experts, device=row_N.device)
    return Order(row_N, place_N, torch.searchsorted(sorted_N, every_E, right=True, out_int32=True))


class _Gather(torch.autograd.Function):
    """Row n of the result is token row[n] // k. Backward gathers too, instead of adding atomically."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, row_N: Tensor, place_N: Tensor, k: int) -> Tensor:
        ctx.save_for_backward(place_N)
        ctx.k = k
        return x_TD.index_select(0, row_N // k if k > 1 else row_N)

    @staticmethod
    def backward(ctx: Any, dy_ND: Tensor) -> tuple[Tensor, None, None, None]:
        (place_N,) = ctx.saved_tensors
        dx_ND = dy_ND.index_select(0, place_N)
        return (dx_ND.unflatten(0, (-1, ctx.k)).sum(1) if ctx.k > 1 else dx_ND), None, None, None


class Experts(nn.Module):
    """E gated experts as stacked matrices: ``w_in`` [E,2F,D] makes [gate | up], ``w_out`` [E,D,F]."""

    def __init__(self, experts: int, width: int, hidden: int, activation: str, std: float) -> None:
        super().__init__()
        self.experts = experts
        self.activation = ACTIVATIONS[activation]
        self.w_in = nn.Parameter(torch.empty(experts, 2 * hidden, width))
        self.w_out = nn.Parameter(torch.empty(experts, width, hidden))
        nn.init.normal_(self.w_in, std=std)
        nn.init.normal_(self.w_out, std=std)

    def forward(self, x_TD: Tensor, ids_Tk: Tensor, weights_Tk: Tensor) -> Tensor:
        """Σ_k weights · expert(x), [T,D]: matmuls in the dtype of x (or autocast's), the sum in that of weights."""
        k = ids_Tk.shape[1]
        order = group_by_expert(ids_Tk, self.experts)
        dtype = x_TD.dtype
        if torch.is_autocast_enabled(x_TD.device.type):
            dtype = torch.get_autocast_dtype(x_TD.device.type)
        x_ND = _Gather.apply(x_TD.to(dtype), order.row_N, order.place_N, k)
        h_NF = self.activation(grouped_linear(x_ND, self.w_in.to(dtype), order.ends_E))
        y_ND = grouped_linear(h_NF, self.w_out.to(dtype), order.ends_E)
        y_TkD = _Gather.apply(y_ND, order.place_N, order.row_N, 1).unflatten(0, (-1, k))
        return (y_TkD * weights_Tk[..., None]).sum(1)

    def flops_per_token(self, top_k: int) -> int:
        """Forward FLOPs of the experts that one token meets."""
        return 2 * self.parameters_each() * top_k

    def parameters_each(self) -> int:
        """Parameters of one expert."""
        return (self.w_in.numel() + self.w_out.numel()) // self.experts
