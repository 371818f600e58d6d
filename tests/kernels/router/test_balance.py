"""Quantile bias against its definition, convergence on frozen scores, and measures of balance."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from k3lab_kernels.router import (
    exact_quantile_bias,
    load_metrics,
    max_vio_floor,
    naive_quantile_bias,
    quantile_bias,
    topk_route,
)


def counted(logits, bias, k, bins=1000):
    h = torch.zeros(logits.shape[1], bins, dtype=torch.int32)
    ids, _ = topk_route(logits, bias, k, histogram=h)
    return h, torch.bincount(ids.flatten(), minlength=logits.shape[1])


def test_by_hand():
    """2 experts, k=1, 4 bins of width ½ from −1, 3 tokens: t = 1.5, ⌈t⌉ = 2."""
    h = torch.tensor([[1, 0, 2, 0], [0, 0, 3, 0]], dtype=torch.int32)
    first = -1 + 0.5 * (2 + (1.5 - 1) / 2)
    second = -1 + 0.5 * (2 + 1.5 / 3)
    mean = (first + second) / 2
    torch.testing.assert_close(quantile_bias(h, torch.zeros(2), 1), torch.tensor([first - mean, second - mean]))


@pytest.mark.parametrize("E,k,T,B", [(5, 2, 37, 11), (64, 8, 500, 1000), (7, 6, 100, 1), (2, 1, 1, 3)])
def test_against_the_loop(E, k, T, B):
    bias = 0.2 * torch.randn(E)
    h, _ = counted(torch.randn(T, E), bias, k, B)
    got = quantile_bias(h, bias, k)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, naive_quantile_bias(h, bias, k), rtol=0, atol=1e-7)
    assert abs(got.double().mean()) < 1e-6
    assert torch.equal(quantile_bias(h.long(), bias, k), got)


def test_layers_at_once_are_bitwise_the_layers_alone():
    bias = torch.randn(2, 3, 16)
    h = torch.stack([counted(torch.randn(90, 16), b, 4, 100)[0] for b in bias.view(6, 16)]).view(2, 3, 16, 100)
    h[1, 1] = 0
    got = quantile_bias(h, bias, 4)
    for i in range(2):
        for j in range(3):
            assert torch.equal(got[i, j], quantile_bias(h[i, j], bias[i, j], 4))
    assert torch.equal(got[1, 1], bias[1, 1])


def test_an_empty_histogram_keeps_the_bias_in_a_new_tensor():
    bias = torch.randn(6)
    new = quantile_bias(torch.zeros(6, 10, dtype=torch.int32), bias, 2)
    assert torch.equal(new, bias)
    assert new.data_ptr() != bias.data_ptr()
    none = exact_quantile_bias(torch.zeros(0, 6), bias, 2)
    assert torch.equal(none, bias)
    assert none.data_ptr() != bias.data_ptr()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 12), st.integers(1, 60), st.sampled_from(["random", "tied", "skewed"]))
def test_exact_bias_holds_the_tie_aware_inequality_and_bins_are_close(seed, E, T, kind):
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(T, E, generator=random)
    if kind == "tied":
        logits = logits.round()
    elif kind == "skewed":
        logits = logits + 8 * torch.randn(E, generator=random)
    k = int(torch.randint(1, E, (1,), generator=random))
    bias = (torch.randn(E, generator=random) * 0.5).double()
    scores = logits.double().sigmoid()
    new = exact_quantile_bias(scores, bias, k)
    assert abs(new.mean()) < 1e-12

    biased = scores + bias
    cutoff = biased.sort(1, descending=True).values[:, k]
    margins = cutoff[:, None] - scores
    q = T * k / E
    shift = margins.sort(0).values[math.ceil(T * k / E) - 1].mean()  # the mean that was removed
    below = (margins < new + shift - 1e-12).sum(0)
    up_to = (margins <= new + shift + 1e-12).sum(0)
    assert (below <= q).all()
    assert (up_to >= q).all()

    h = torch.zeros(E, 200, dtype=torch.int32)
    topk_route(logits.double(), bias, k, histogram=h)
    width = (bias.max() - bias.min() + 2) / 200
    binned = quantile_bias(h, bias, k)
    offset = (binned - new) - (binned - new).min()
    assert offset.max() <= 2 * width  # each within one bin, before the means are removed


def test_every_split_gives_the_same_bits():
    logits, bias = torch.randn(1024, 16) + torch.randn(16), 0.1 * torch.randn(16)
    whole = quantile_bias(counted(logits, bias, 4)[0], bias, 4)
    for size in (64, 100, 512):
        pooled = sum(counted(part, bias, 4)[0] for part in logits.split(size))
        assert torch.equal(quantile_bias(pooled, bias, 4), whole)


def test_the_mean_of_shard_quantiles_is_not_the_pooled_quantile():
    """Shards with different tastes: pooling counts balances the whole, averaging biases does not."""
    shards = [torch.randn(1024, 16) + 2 * torch.randn(16) for _ in range(4)]
    logits, pooled, averaged = torch.cat(shards), torch.zeros(16), torch.zeros(16)
    for _ in range(6):
        pooled = quantile_bias(counted(logits, pooled, 4)[0], pooled, 4)
        averaged = torch.stack([quantile_bias(counted(s, averaged, 4)[0], averaged, 4) for s in shards]).mean(0)
    vio = [load_metrics(counted(logits, b, 4)[1])["max_vio"] for b in (pooled, averaged)]
    assert vio[0] < 0.1
    assert vio[1] > 3 * vio[0]


def test_frozen_skewed_scores_balance_in_a_few_updates():
    logits = torch.randn(8192, 64) + torch.randn(64)
    bias, exact = torch.zeros(64), torch.zeros(64)
    binned_vio, exact_vio = [], []
    for _ in range(9):
        h, counts = counted(logits, bias, 8)
        binned_vio.append(load_metrics(counts)["max_vio"])
        exact_vio.append(load_metrics(counted(logits, exact, 8, 1)[1])["max_vio"])
        bias, exact = quantile_bias(h, bias, 8), exact_quantile_bias(logits.sigmoid(), exact, 8)
    assert binned_vio[0] > 3
    assert binned_vio[1] < 0.25
    assert binned_vio[4] < 0.1
    assert exact_vio[8] < 0.05


def test_load_metrics():
    got = load_metrics(torch.tensor([4, 0, 2, 2]))
    assert set(got) == {"max_vio", "min_vio", "cv", "entropy", "dead_experts"}
    assert got["max_vio"] == pytest.approx(1.0)
    assert got["min_vio"] == pytest.approx(1.0)
    assert got["cv"] == pytest.approx(math.sqrt(2) / 2)
    assert got["entropy"] == pytest.approx((0.5 * math.log(2) + 0.5 * math.log(4)) / math.log(4))
    assert got["dead_experts"] == 1
    even = load_metrics(torch.full((8,), 5))
    assert (even["max_vio"], even["min_vio"], even["cv"], even["dead_experts"]) == (0, 0, 0, 0)
    assert even["entropy"] == pytest.approx(1.0)
    assert load_metrics(torch.zeros(4, dtype=torch.int64)) == dict.fromkeys(got, 0)


def test_floor_is_what_ideal_routing_shows():
    """Largest of E normals: 3.24 at 896 and 2.4 at 64 experts; and a simulation on fresh batches."""
    for E, k, largest in ((896, 16, 3.24), (64, 8, 2.4)):
        p = k / E
        assert max_vio_floor(1000, E, k) / math.sqrt(2 * (1 - p) / (1000 * p)) == pytest.approx(largest, abs=0.01)
    E, k, T = 32, 4, 2048
    bias, vio = torch.zeros(E), []
    for step in range(41):
        h, counts = counted(torch.randn(T, E), bias, k)
        bias = quantile_bias(h, bias, k)
        if step:
            vio.append(load_metrics(counts)["max_vio"])
    assert sum(vio) / len(vio) == pytest.approx(max_vio_floor(T, E, k), rel=0.15)
    assert max_vio_floor(0, 8, 2) == 0


@pytest.mark.parametrize(
    "call,name",
    [
        (lambda: quantile_bias(torch.zeros(4, 9), torch.zeros(4), 2), "histogram"),
        (lambda: quantile_bias(torch.zeros(9, dtype=torch.int32), torch.zeros(4), 2), "histogram"),
        (lambda: quantile_bias(torch.zeros(4, 9, dtype=torch.int32), torch.zeros(5), 2), "bias"),
        (lambda: quantile_bias(torch.zeros(4, 9, dtype=torch.int32), torch.zeros(4).half(), 2), "bias"),
        (lambda: quantile_bias(torch.zeros(4, 9, dtype=torch.int32), torch.zeros(4), 4), "k"),
        (lambda: quantile_bias(torch.ones(4, 9).int(), torch.full((4,), torch.nan), 2), "bias"),
        (lambda: exact_quantile_bias(torch.full((3, 4), torch.nan), torch.zeros(4), 2), "scores"),
        (lambda: exact_quantile_bias(torch.zeros(3, 4), torch.zeros(3), 2), "bias"),
        (lambda: exact_quantile_bias(torch.zeros(3, 4), torch.full((4,), torch.nan), 2), "bias"),
        (lambda: exact_quantile_bias(torch.zeros(3, 4), torch.zeros(4), 0), "k"),
        (lambda: load_metrics(torch.zeros(2, 2)), "counts"),
        (lambda: load_metrics(torch.tensor([-1, 2])), "counts"),
        (lambda: load_metrics([1, 2]), "counts"),
        (lambda: max_vio_floor(-1, 8, 2), "tokens"),
        (lambda: max_vio_floor(math.nan, 8, 2), "tokens"),
        (lambda: max_vio_floor("10", 8, 2), "tokens"),
        (lambda: max_vio_floor(10, 8.0, 2), "experts"),
        (lambda: max_vio_floor(10, 8, 8), "k"),
    ],
)
def test_mistakes_name_the_argument(call, name):
    with pytest.raises((ValueError, TypeError), match=f"^{name}(=[^:]*)?: "):
        call()
