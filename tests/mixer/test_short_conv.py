"""The short convolution: values, both forms, the tail."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from k3lab.mixer.documents import find_documents
from k3lab.mixer.short_conv import ShortConv, shifted_products


@pytest.mark.parametrize("taps", [1, 2, 4])
def test_both_forms_equal_a_sum_over_taps(taps: int) -> None:
    torch.manual_seed(0)
    conv = ShortConv(3, taps).double()
    x = torch.randn(2, 6, 3, dtype=torch.float64)
    expected = torch.zeros_like(x)
    for t in range(6):
        for j in range(taps):
            if t - taps + 1 + j >= 0:
                expected[:, t] += conv.weight[:, 0, j] * x[:, t - taps + 1 + j]
    torch.testing.assert_close(conv(x), F.silu(expected))
    padded = F.pad(x, (0, 0, taps - 1, 0))
    torch.testing.assert_close(shifted_products(padded, conv.weight), expected)


@pytest.mark.parametrize("parts", [[1] * 7, [2, 5], [6, 1]])
def test_the_tail_carries_on(parts: list[int]) -> None:
    conv = ShortConv(3, 4)
    x = torch.randn(2, 7, 3)
    tail, outputs = None, []
    for part in x.split(parts, dim=1):
        outputs.append(conv(part, tail))
        tail = conv.next_tail(part, tail)
    assert tail is not None
    assert torch.equal(tail, x[:, 4:])
    torch.testing.assert_close(torch.cat(outputs, dim=1), conv(x))


@pytest.mark.parametrize("taps", [1, 2, 4, 16])
def test_no_tap_reaches_into_another_document(taps: int) -> None:
    torch.manual_seed(0)
    conv = ShortConv(3, taps).double()
    x = torch.randn(1, 9, 3, dtype=torch.float64)
    ids = torch.tensor([[0, 0, 1, 2, 2, 2, 2, 2, 3]])
    expected = torch.cat([conv(x[:, a:b]) for a, b in ((0, 2), (2, 3), (3, 8), (8, 9))], dim=1)
    torch.testing.assert_close(conv(x, documents=find_documents(ids)), expected)
