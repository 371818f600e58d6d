"""Packing: every document whole, nothing predicted across an end, rows well filled."""

import time

import numpy as np
import pytest
import torch

from k3lab.data.packing import _best_fit, cu_seqlens, pack, packed_batch
from k3lab.data.tokenfolder import TokenWriter, new_folder, open_folder
from k3lab.data.tokenize import ByteTokenizer

T = 16


def documents(count, longest, seed=0):
    """Documents of different tokens, so that a token tells where it is from: 256 opens each."""
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 256, size=generator.integers(1, longest)).astype(np.uint8) for _ in range(count)]


def side_of(folder, docs):
    with new_folder(folder) as draft:
        writer = TokenWriter(draft, ByteTokenizer(), file_tokens=100)
        for ids in docs:
            writer.add("train", ids, len(ids))
        writer.close({})
    return open_folder(folder).side("train")


def rows_of(side):
    packing = pack(side.starts(), len(side), T)
    return packing, packed_batch(side, packing, np.arange(len(packing)), T, padding=256)


@pytest.mark.parametrize("longest", [2, 5, 16, 17, 60])
def test_each_token_is_predicted_once_from_its_own_document(tmp_path, longest):
    docs = documents(80, longest)
    packing, batch = rows_of(side_of(tmp_path / "t", docs))
    pairs = []  # (token, next token) of every position with a loss
    for b in range(len(packing)):
        for t in range(T):
            token, target = int(batch["tokens"][b, t]), int(batch["targets"][b, t])
            if target == -100:
                continue
            assert batch["mask"][b, t]
            pairs.append((token, target))
            if t + 1 < T and batch["documents"][b, t + 1] == batch["documents"][b, t]:
                assert batch["tokens"][b, t + 1] == target
    wanted = [pair for ids in docs for pair in zip([256, *ids.tolist()], ids.tolist(), strict=False)]
    assert sorted(pairs) == sorted(wanted)
    assert packing.targets_R.tolist() == (batch["targets"] != -100).sum(dim=1).tolist()


def test_documents_are_whole_in_order_and_numbered_from_zero(tmp_path):
    docs = documents(60, T)  # with its separator each fits a row
    _, batch = rows_of(side_of(tmp_path / "t", docs))
    assert batch["documents"].dtype == torch.int32
    found = []
    for tokens, targets, mask, numbers in zip(
        *(batch[k] for k in ("tokens", "targets", "mask", "documents")), strict=True
    ):
        real = int(mask.sum())
        assert mask[:real].all()
        assert (targets[real:] == -100).all()
        assert (tokens[real:] == 256).all()
        assert numbers[0] == 0
        assert set(torch.diff(numbers).tolist()) <= {0, 1}
        if real < T:
            assert numbers[real] == numbers[real - 1] + 1  # padding is no part of the last document
        for number in range(int(numbers[real - 1]) + 1):
            place = torch.nonzero(numbers == number).flatten()
            document = tokens[place].tolist()
            assert document[0] == 256
            assert targets[place].tolist() == [*document[1:], -100]
            found.append(tuple(document[1:]))
    assert sorted(found) == sorted(tuple(ids.tolist()) for ids in docs)


def test_a_long_document_goes_on_in_other_rows(tmp_path):
    ids = np.arange(2 * T + 5, dtype=np.uint8)
    packing, batch = rows_of(side_of(tmp_path / "t", [ids]))
    assert packing.length_N.tolist() == [T, T, 6]
    assert batch["tokens"][1].tolist() == list(range(T - 1, 2 * T - 1))
    assert batch["targets"][1].tolist() == list(range(T, 2 * T))  # the last target opens the next row
    assert batch["targets"][2].tolist() == [*range(2 * T, 2 * T + 5), *[-100] * (T - 5)]


def test_a_rest_that_predicts_nothing_is_left_out(tmp_path):
    packing, batch = rows_of(side_of(tmp_path / "t", [np.arange(T, dtype=np.uint8)]))
    assert packing.length_N.tolist() == [T]
    assert batch["targets"][0].tolist() == list(range(T))


def test_rows_are_nearly_full_and_never_too_full():
    lengths = np.random.default_rng(0).integers(1, 257, size=5000)
    rows = _best_fit(lengths, 256)
    filled = np.bincount(rows, lengths)
    assert filled.max() <= 256
    assert filled.min() > 0
    assert filled.mean() / 256 > 0.98


def test_best_fit_is_best_fit():
    """Against a search through all rows for the least room that is enough."""
    lengths = np.random.default_rng(1).integers(1, 33, size=300)
    room = []
    for length in sorted(lengths.tolist(), reverse=True):
        fits = [r for r in room if r >= length]
        if fits:
            room.remove(min(fits))
            room.append(min(fits) - length)
        else:
            room.append(32 - length)
    filled = np.bincount(_best_fit(lengths, 32), lengths)
    assert sorted((32 - filled).tolist()) == sorted(room)


def test_cu_seqlens():
    numbers = torch.tensor([[0, 0, 1, 2], [0, 0, 0, 0], [0, 1, 1, 1]], dtype=torch.int32)
    cu = cu_seqlens(numbers)
    assert cu.dtype == torch.int32
    assert cu.tolist() == [0, 2, 3, 4, 8, 9, 12]
    flat = torch.arange(12).split(torch.diff(cu).tolist())
    assert [len(torch.unique(numbers.flatten()[part])) for part in flat] == [1] * 6


def test_many_documents_are_packed_in_little_time():
    lengths = np.random.default_rng(0).integers(2, 900, size=200_000)
    starts = np.cumsum(lengths) - lengths
    began = time.perf_counter()
    packing = pack(starts, int(lengths.sum()), 1024)
    assert time.perf_counter() - began < 5
    assert packing.length_N.sum() / (len(packing) * 1024) > 0.99
