"""Where each token's row lies when sequences are cut into chunks that a scan can walk together.

Chunks are ordered by their position in the sequence, then by sequence, longest first: the chunks of one scan step
are a contiguous slice, and its sequences are the first rows of the state. A batch is the case of equal lengths.
Shapes: B batch, T time, N sequences, G chunks, C rows of a chunk, H heads, D features.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from k3lab_kernels.kda.checks import sequence_bounds


@dataclass(frozen=True)
class Layout:
    """`counts[c]`: sequences with a c-th chunk; `order[r]`: the sequence of rank r; `rows[t]`: row of token t."""

    batch: int
    time: int
    chunk: int
    counts: list[int]
    sequences: int
    order: Tensor | None = None
    rows: Tensor | None = None
    first: Tensor | None = None

    @property
    def chunks(self) -> int:
        return sum(self.counts)

    def steps(self, heads: int) -> list[tuple[int, int]]:
        """Slices of the scan steps in an array whose leading dimension is chunk × head."""
        stops = list(accumulate(self.counts))
        return [((stop - n) * heads, stop * heads) for stop, n in zip(stops, self.counts, strict=True)]

    def split(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """[B, T, H, D] → [G·H, C, D] contiguous; rows past a sequence's end are zero."""
        H, D = x.shape[2:]
        C, G = self.chunk, self.chunks
        if self.rows is None:
            steps = len(self.counts)
            x, missing = x.to(dtype), steps * C - self.time
            x = F.pad(x, (0, 0, 0, 0, 0, missing)) if missing else x
            x = x.reshape(self.batch, steps, C, H, D).permute(1, 0, 3, 2, 4)
        else:
            x = x.new_zeros(G * C, H, D, dtype=dtype).index_copy(0, self.rows, x[0].to(dtype))
            x = x.view(G, C, H, D).transpose(1, 2)
        return x.contiguous().view(G * H, C, D)

    def join(self, x: Tensor, H: int) -> Tensor:
        """[G·H, C, D] → [B, T, H, D], the inverse of `split`."""
        C, D = x.shape[1:]
        if self.rows is None:
            x = x.view(len(self.counts), self.batch, H, C, D).permute(1, 0, 3, 2, 4)
            return x.reshape(self.batch, len(self.counts) * C, H, D)[:, : self.time]
        x = x.view(self.chunks, H, C, D).transpose(1, 2).reshape(self.chunks * C, H, D)
        return x.index_select(0, self.rows)[None]

    def rank(self, states: Tensor) -> Tensor:
        """[N, …] in the order of sequences → in the order of ranks."""
        return states if self.order is None else states.index_select(0, self.order)

    def unrank(self, states: Tensor) -> Tensor:
        """The inverse of `rank`."""
        return states if self.order is None else torch.zeros_like(states).index_copy(0, self.order, states)

    def chunk_states(self, x: Tensor, H: int) -> Tensor:
        """[G·H, K, V] one state a chunk → [B, chunks, H, K, V] in the order of sequences."""
        x = x.view(-1, H, *x.shape[1:])
        if self.first is not None:
            return x.index_select(0, self.first)[None]
        return x.view(len(self.counts), self.batch, *x.shape[1:]).transpose(0, 1)


def make_layout(
    B: int, T: int, chunk: int, device: torch.device, cu_seqlens: Tensor | None, cu_seqlens_cpu: Tensor | None
) -> Layout:
    """Layout of a batch, or of sequences packed into a batch of one; ValueError for bad offsets."""
    if cu_seqlens is None:
        return Layout(B, T, chunk, [B] * (-(-T // chunk)), B)
    bounds = sequence_bounds(cu_seqlens, cu_seqlens_cpu, T)
    N = len(bounds) - 1
    lengths = [b - a for a, b in pairwise(bounds)]
    order = sorted(range(N), key=lambda n: -lengths[n])
    chunks = [-(-length // chunk) for length in lengths]
    counts = [0] * max(chunks)
    ranks = [0] * N
    for r, n in enumerate(order):
        ranks[n] = r
        for c in range(chunks[n]):
            counts[c] += 1
    offsets = torch.tensor([0, *accumulate(counts)], dtype=torch.int64)
    length_N = torch.tensor(lengths, dtype=torch.int64)
    rank_N = torch.tensor(ranks, dtype=torch.int64)
    sequence_T = torch.repeat_interleave(torch.arange(N), length_N)
    position_T = torch.arange(T) - torch.tensor(bounds[:-1], dtype=torch.int64)[sequence_T]
    chunk_T = offsets[position_T // chunk] + rank_N[sequence_T]
    rows = chunk_T * chunk + position_T % chunk
    return Layout(
        B, T, chunk, counts, N,
        order=torch.tensor(order, dtype=torch.int64).to(device),
        rows=rows.to(device),
        first=chunk_T[position_T % chunk == 0].to(device),
    )  # fmt: skip
