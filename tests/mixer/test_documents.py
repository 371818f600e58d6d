"""Documents of packed sequences: their numbers and their offsets in the flattened batch."""

from __future__ import annotations

import pytest
import torch

from k3lab.mixer.documents import find_documents


def test_runs_are_documents_even_where_an_integer_comes_back() -> None:
    found = find_documents(torch.tensor([[5, 5, 2, 5], [5, 5, 5, 5]], dtype=torch.int32))
    assert found.number_BT.tolist() == [[0, 0, 1, 2], [0, 0, 0, 0]]
    assert found.starts_BT().tolist() == [[True, False, True, True], [True, False, False, False]]
    assert found.cu_seqlens.tolist() == [0, 2, 3, 4, 8]
    assert found.cu_seqlens.dtype == torch.int32
    assert torch.equal(found.cu_seqlens, found.cu_seqlens_cpu)


@pytest.mark.parametrize(("documents", "offsets"), [(1, 2), (2, 3), (3, 5), (4, 5), (5, 9), (8, 9), (9, 17)])
def test_their_number_is_rounded_up_by_empty_ones(documents: int, offsets: int) -> None:
    ids = torch.arange(12).clamp(max=documents - 1)[None]
    found = find_documents(ids).cu_seqlens.tolist()
    assert len(found) == offsets
    assert found[:documents] == list(range(documents))
    assert found[documents:] == [12] * (offsets - documents)


@pytest.mark.parametrize("ids", [torch.zeros(3, dtype=torch.int32), torch.zeros(2, 3), torch.zeros(1, 0).int()])
def test_refuses_what_is_no_table_of_integers(ids: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="documents: must be integers"):
        find_documents(ids)
