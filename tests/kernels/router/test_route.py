"""Routing: ids, scores, ties, histogram, gradients; refused mistakes."""

from __future__ import annotations

import pytest
import torch

from k3lab_kernels.router import naive_topk_route, topk_route


def histogram(E, B=50):
    return torch.zeros(E, B, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("T,E,k", [(200, 13, 3), (64, 64, 8), (1, 2, 1), (0, 5, 2), (40, 7, 6)])
def test_against_the_loop(dtype, T, E, k):
    logits = torch.randn(T, E, dtype=torch.float64).to(dtype)
    bias, mask = 0.3 * torch.randn(E), torch.rand(T) > 0.2
    got_h, want_h = histogram(E), histogram(E)
    ids, scores = topk_route(logits, bias, k, histogram=got_h, mask=mask)
    want_ids, want_scores = naive_topk_route(logits, bias, k, histogram=want_h, mask=mask)
    assert ids.dtype == torch.int64
    assert ids.is_contiguous()
    assert scores.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(ids, want_ids)
    assert torch.equal(scores, want_scores)
    assert torch.equal(got_h, want_h)
    assert got_h.sum(1).tolist() == [int(mask.sum())] * E
    assert torch.equal(topk_route(logits, bias, k)[0], ids)


def test_ties_go_to_the_lower_id():
    for dtype in (torch.float32, torch.float64):
        ids, _ = topk_route(torch.zeros(3, 6, dtype=dtype), torch.zeros(6), 4)
        assert ids.tolist() == [[0, 1, 2, 3]] * 3
    ids, _ = topk_route(torch.zeros(1, 4), torch.tensor([-0.5, 0.0, -0.0, -0.5]), 3)
    assert ids.tolist() == [[1, 2, 0]]
    ids, _ = topk_route(torch.full((1, 4), -torch.inf), torch.tensor([-0.0, 0.0, -0.0, 0.0]), 3)
    assert ids.tolist() == [[0, 1, 2]]


def test_ties_do_not_flip_when_routed_again_or_in_parts():
    logits = torch.randint(-2, 3, (300, 16)).float()
    bias = torch.zeros(16)
    ids, _ = topk_route(logits, bias, 4)
    assert torch.equal(topk_route(logits.clone(), bias, 4)[0], ids)
    assert torch.equal(torch.cat([topk_route(x, bias, 4)[0] for x in logits.split(7)]), ids)


def test_the_bias_chooses_but_never_weighs():
    logits = torch.randn(5, 4)
    ids, scores = topk_route(logits, torch.tensor([10.0, 0, 0, 0]), 2)
    assert ids[:, 0].tolist() == [0] * 5
    torch.testing.assert_close(scores[:, 0], logits[:, 0].sigmoid())


def test_descending_biased_order():
    logits, bias = torch.randn(50, 9), torch.randn(9)
    ids, scores = topk_route(logits, bias, 5)
    biased = scores + bias[ids]
    assert (biased[:, :-1] >= biased[:, 1:]).all()


def test_gradients_flow_through_the_scores_only():
    logits, bias = torch.randn(6, 5, dtype=torch.float64).requires_grad_(), torch.zeros(5, requires_grad=True)
    ids, scores = topk_route(logits, bias, 2)
    weight = torch.randn(6, 2, dtype=torch.float64)
    grads = torch.autograd.grad((scores * weight).sum(), [logits, bias], allow_unused=True)
    s = logits.detach().sigmoid()
    want = torch.zeros_like(s).scatter(1, ids, weight) * s * (1 - s)
    torch.testing.assert_close(grads[0], want)
    assert grads[1] is None
    assert not ids.requires_grad


def test_histogram_is_added_to_and_bins_are_left_closed():
    """E=2, k=1, bias 0: margins are −(the gap) for the winner and 0 for the loser, on the edge of bin B/2."""
    h = torch.full((2, 4), 7, dtype=torch.int32)
    pointer = h.data_ptr()
    topk_route(torch.tensor([[torch.inf, 0.0]]), torch.zeros(2), 1, histogram=h)  # scores 1 and ½, cutoff ½
    assert h.data_ptr() == pointer
    assert (h - 7).tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]]


def test_histogram_of_parts_adds_up_whatever_the_split():
    logits, bias = torch.randn(512, 16), 0.1 * torch.randn(16)
    whole = histogram(16, 1000)
    topk_route(logits, bias, 4, histogram=whole)
    for sizes in (1, 7, 128):
        parts = histogram(16, 1000)
        for part in logits.split(sizes):
            topk_route(part, bias, 4, histogram=parts)
        assert torch.equal(parts, whole)


def test_padding_is_routed_but_not_counted():
    """T = E too, where a mask of the wrong shape would broadcast."""
    for T in (64, 8):
        logits, bias = torch.randn(T, 8), torch.zeros(8)
        mask = torch.ones(T, dtype=torch.bool)
        mask[-4:] = False
        padded, clean = histogram(8), histogram(8)
        ids, _ = topk_route(logits, bias, 2, histogram=padded, mask=mask)
        topk_route(logits[:-4], bias, 2, histogram=clean)
        assert torch.equal(padded, clean)
        assert padded.sum(1).tolist() == [T - 4] * 8
        assert ids.shape == (T, 2)


def test_strided_histogram_and_no_change_of_inputs():
    stacked = torch.zeros(3, 8, 2, 20, dtype=torch.int32)
    logits, bias = torch.randn(10, 8), torch.randn(8)
    copies = logits.clone(), bias.clone()
    topk_route(logits, bias, 2, histogram=stacked[1, :, 0])
    assert stacked[1, :, 0].sum() == 80
    assert stacked.sum() == 80
    assert torch.equal(logits, copies[0])
    assert torch.equal(bias, copies[1])


@pytest.mark.parametrize(
    "change,name",
    [
        ({"k": 0}, "k"),
        ({"k": 6}, "k"),
        ({"k": 2.0}, "k"),
        ({"k": True}, "k"),
        ({"logits": torch.full((4, 6), torch.nan)}, "logits"),
        ({"logits": torch.zeros(6)}, "logits"),
        ({"logits": torch.zeros(4, 6, dtype=torch.int64)}, "logits"),
        ({"logits": [[1.0]]}, "logits"),
        ({"bias": torch.zeros(5)}, "bias"),
        ({"bias": torch.full((6,), torch.nan)}, "bias"),
        ({"bias": torch.zeros(6, dtype=torch.bfloat16)}, "bias"),
        ({"bias": torch.zeros(6, dtype=torch.float64)}, "bias"),
        ({"histogram": torch.zeros(6, 9)}, "histogram"),
        ({"histogram": torch.zeros(5, 9, dtype=torch.int32)}, "histogram"),
        ({"histogram": torch.zeros(6, 0, dtype=torch.int32)}, "histogram"),
        ({"histogram": torch.zeros(6, dtype=torch.int32)}, "histogram"),
        ({"mask": torch.ones(4)}, "mask"),
        ({"mask": torch.ones(6, dtype=torch.bool)}, "mask"),
        ({"mask": torch.ones(4, 6, dtype=torch.bool)}, "mask"),
    ],
)
def test_mistakes_name_the_argument(change, name):
    arguments = {"logits": torch.zeros(4, 6), "bias": torch.zeros(6), "k": 2, **change}
    with pytest.raises((ValueError, TypeError), match=f"^{name}(=[^:]*)?: "):
        topk_route(**arguments)


def test_compiles_whole():
    def call(logits, bias, h, mask):
        return topk_route(logits, bias, 2, histogram=h, mask=mask)

    logits, bias, mask = torch.randn(20, 8), torch.randn(8), torch.rand(20) > 0.3
    h, want_h = histogram(8), histogram(8)
    got = torch.compile(call, fullgraph=True, backend="aot_eager")(logits, bias, h, mask)
    want = call(logits, bias, want_h, mask)
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])
    assert torch.equal(h, want_h)
