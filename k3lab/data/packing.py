"""Sequences made of whole documents, so that none has to be read across the end of another.

Documents longer than a sequence are cut into pieces of its length and a rest; each row then gets the longest
piece left, the longest that still fits beside it, and so on (best fit of decreasing lengths), which fills rows
almost completely.

Shapes: B sequences, T tokens, N pieces, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from k3lab.data.base import NO_TARGET, Batch, to_batch
from k3lab.data.tokenfolder import TokenArray


@dataclass(frozen=True)
class Packing:
    """Which pieces make up each row."""

    start_N: np.ndarray  # int64, place of a piece's first token; pieces of a row are neighbours here
    length_N: np.ndarray  # int64, its tokens
    ends_N: np.ndarray  # bool, its last token is its document's last
    first_R: np.ndarray  # int64 [R+1], the first piece of each row, and N
    targets_R: np.ndarray  # int64, tokens of each row that have a next token in the same document
    tokens_R: np.ndarray  # int64, tokens of each row that are no padding

    def __len__(self) -> int:
        return len(self.targets_R)


def pack(starts: np.ndarray, total: int, seq_len: int) -> Packing:
    """Pack documents that begin at `starts` (ascending, the last one ends at `total`) into rows of `seq_len`."""
    lengths = np.diff(starts, append=total)
    pieces = -(-lengths // seq_len)
    document = np.repeat(np.arange(len(starts)), pieces)
    within = np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    start = starts[document] + within * seq_len
    length = np.minimum(seq_len, lengths[document] - within * seq_len)
    ends = within == pieces[document] - 1
    useful = length > ends  # a rest of one token has nothing to predict, and nobody reads it
    start, length, ends = start[useful], length[useful], ends[useful]
    row = _best_fit(length, seq_len)
    order = np.argsort(row, kind="stable")
    rows = int(row.max(initial=-1)) + 1
    first = np.searchsorted(row[order], np.arange(rows + 1))
    targets = np.bincount(row, length - ends, minlength=rows).astype(np.int64)
    tokens = np.bincount(row, length, minlength=rows).astype(np.int64)
    return Packing(start[order], length[order], ends[order], first, targets, tokens)


def packed_batch(tokens: TokenArray, packing: Packing, rows: np.ndarray, seq_len: int, padding: int) -> Batch:
    """Batch of some rows: tokens, targets (none at the end of a document), mask, and `documents` [B,T] int32.

    Documents are numbered from 0 in each row; padding is one more document at its end, with mask False.
    """
    shape = (len(rows), seq_len)
    ids, targets = np.full(shape, padding, dtype=np.int64), np.full(shape, NO_TARGET, dtype=np.int64)
    mask, documents = np.zeros(shape, dtype=np.bool_), np.zeros(shape, dtype=np.int32)
    for b, row in enumerate(rows.tolist()):
        place = 0
        pieces = range(int(packing.first_R[row]), int(packing.first_R[row + 1]))
        for number, piece in enumerate(pieces):
            start, length = int(packing.start_N[piece]), int(packing.length_N[piece])
            known = length - int(packing.ends_N[piece])  # tokens whose next one is in the same document
            read = tokens.read(start, start + known + 1)
            ids[b, place : place + length] = read[:length]
            targets[b, place : place + known] = read[1 : known + 1]
            documents[b, place : place + length] = number
            place += length
        mask[b, :place] = True
        documents[b, place:] = len(pieces)
    return {**to_batch(ids, targets, mask), "documents": torch.from_numpy(documents)}


def cu_seqlens(documents_BT: Tensor) -> Tensor:
    """Where each document begins in the flattened batch [1, B·T], then B·T: int32 [documents + 1]."""
    new_BT = torch.ones_like(documents_BT, dtype=torch.bool)
    new_BT[:, 1:] = documents_BT[:, 1:] != documents_BT[:, :-1]
    starts = torch.nonzero(new_BT.flatten()).flatten()
    return torch.cat([starts, starts.new_tensor([documents_BT.numel()])]).to(torch.int32)


def _best_fit(length_N: np.ndarray, seq_len: int) -> np.ndarray:
    """Row of each piece, int64 [N]: longest pieces first, each into the row with the least room that is enough."""
    row_N = np.empty(len(length_N), dtype=np.int64)
    room: list[list[int]] = [[] for _ in range(seq_len + 1)]  # rows by the tokens that still fit in
    some = 0  # bit r is set if room[r] has rows: the least room that is enough is one operation away
    rows = 0
    order = np.argsort(-length_N, kind="stable")
    for piece, length in zip(order.tolist(), length_N[order].tolist(), strict=True):
        if enough := some >> length:
            size = length + (enough & -enough).bit_length() - 1
            row = room[size].pop()
            if not room[size]:
                some ^= 1 << size
        else:
            size, row, rows = seq_len, rows, rows + 1
        row_N[piece] = row
        if left := size - length:
            room[left].append(row)
            some |= 1 << left
    return row_N
