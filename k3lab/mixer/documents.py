"""Sequences packed of several documents, none of which may see another.

B batch, T time, N documents of all sequences, padded to a power of two.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Documents(NamedTuple):
    """Which tokens belong together, in the forms that mixers ask for; made by `find_documents`."""

    number_BT: Tensor  # int32, counted up from 0 in each sequence
    cu_seqlens: Tensor  # int32 [N+1], ends in the flattened batch [1, B·T]; the last documents may be empty
    cu_seqlens_cpu: Tensor  # its copy on the host

    def starts_BT(self) -> Tensor:
        """Whether a token is the first of its document, bool."""
        first_B1 = torch.ones_like(self.number_BT[:, :1], dtype=torch.bool)
        return torch.cat([first_B1, self.number_BT[:, 1:] != self.number_BT[:, :-1]], dim=1)


@torch.compiler.disable
def find_documents(ids_BT: Tensor) -> Documents:
    """Runs of equal integers in each row are documents; ValueError where there are no tokens.

    Waits once for the device: how many there are decides shapes. Their number is rounded up to a power of two by
    empty documents, so that a compiled model meets few shapes.
    """
    if ids_BT.dim() != 2 or ids_BT.numel() == 0 or ids_BT.is_floating_point():
        raise ValueError(f"documents: must be integers [B,T], got {ids_BT.dtype} {list(ids_BT.shape)}")
    new_BT = torch.ones_like(ids_BT, dtype=torch.bool)
    new_BT[:, 1:] = ids_BT[:, 1:] != ids_BT[:, :-1]
    number_BT = new_BT.cumsum(1, dtype=torch.int32) - 1
    starts = new_BT.flatten().nonzero().flatten().tolist()
    documents = 1 << (len(starts) - 1).bit_length()
    cpu = torch.tensor(starts + [ids_BT.numel()] * (documents + 1 - len(starts)), dtype=torch.int32)
    return Documents(number_BT, cpu.to(ids_BT.device), cpu)
