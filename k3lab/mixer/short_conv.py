"""A short causal depthwise convolution followed by SiLU, with the tail that decoding carries on.

B batch, T time, C channels, W taps, S = T + W − 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from k3lab.mixer.documents import Documents


class ShortConv(nn.Module):
    """y_t = SiLU(Σ_j w_j · x_{t−W+1+j}) for each channel on its own; W = 1 is a scaling."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.channels = channels
        self.taps = taps
        self.weight = nn.Parameter(torch.empty(channels, 1, taps))
        nn.init.uniform_(self.weight, -(taps**-0.5), taps**-0.5)

    def forward(self, x_BTC: Tensor, tail_BWC: Tensor | None = None, documents: Documents | None = None) -> Tensor:
        """x [B,T,C], and the W−1 inputs before it (None: zeros) → y [B,T,C], dtype of x.

        Inputs of other documents count as zeros.
        """
        if documents is not None:
            return F.silu(products_inside(x_BTC, self.weight.to(x_BTC.dtype), documents.number_BT))
        x_BSC = self._extend(x_BTC, tail_BWC)
        weight_C1W = self.weight.to(x_BSC.dtype)
        if x_BSC.device.type == "cpu":  # oneDNN's depthwise convolution beats W eager passes
            y_BTC = F.conv1d(x_BSC.transpose(1, 2), weight_C1W, groups=self.channels).transpose(1, 2)
        else:  # W shifted products fuse into one pass when compiled
            y_BTC = shifted_products(x_BSC, weight_C1W)
        return F.silu(y_BTC)

    def next_tail(self, x_BTC: Tensor, tail_BWC: Tensor | None) -> Tensor:
        """The W−1 newest inputs, copied, for the tokens to come."""
        x_BSC = self._extend(x_BTC, tail_BWC)
        return x_BSC[:, x_BTC.shape[1] :].clone()

    def _extend(self, x_BTC: Tensor, tail_BWC: Tensor | None) -> Tensor:
        if tail_BWC is None:
            return F.pad(x_BTC, (0, 0, self.taps - 1, 0))
        return torch.cat([tail_BWC.to(x_BTC.dtype), x_BTC], dim=1)


def shifted_products(x_BSC: Tensor, weight_C1W: Tensor) -> Tensor:
    """The depthwise convolution of [B,S,C] as a sum of W products, [B,S−W+1,C]."""
    taps = weight_C1W.shape[-1]
    time = x_BSC.shape[1] - taps + 1
    y_BTC = x_BSC[:, :time] * weight_C1W[:, 0, 0]
    for j in range(1, taps):
        y_BTC = torch.addcmul(y_BTC, x_BSC[:, j : j + time], weight_C1W[:, 0, j])
    return y_BTC


def products_inside(x_BTC: Tensor, weight_C1W: Tensor, number_BT: Tensor) -> Tensor:
    """The depthwise convolution of [B,T,C] inside runs of equal numbers, [B,T,C]."""
    taps = weight_C1W.shape[-1]
    y_BTC = x_BTC * weight_C1W[:, 0, -1]
    for back in range(1, min(taps, x_BTC.shape[1])):
        same_BT1 = (number_BT[:, back:] == number_BT[:, :-back]).unsqueeze(-1)
        earlier_BTC = (x_BTC[:, :-back] * weight_C1W[:, 0, taps - 1 - back]).masked_fill(~same_BT1, 0.0)
        y_BTC = y_BTC + F.pad(earlier_BTC, (0, 0, back, 0))
    return y_BTC
