"""Quantile balancing by histogram: convergence, resolution, pooling over heterogeneous shards, refusals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from k3lab.router.base import Router
from k3lab.router.quantile import QuantileSettings
from tests.router.helpers import frozen, make, max_vio, tokens


def skewed(count: int, experts: int, seed: int = 0) -> Tensor:
    """Frozen scores with favourites among the experts."""
    generator = torch.Generator().manual_seed(seed)
    return torch.sigmoid(torch.randn(count, experts, generator=generator) + torch.randn(experts, generator=generator))


def updates(router: Router, x: Tensor, count: int) -> list[float]:
    """MaxVio before each of ``count`` updates on the same batch, and after the last."""
    history = []
    for _ in range(count):
        routing = router.route(x)
        history.append(max_vio(routing.counts_E))
        router.count(routing)
        router.end_of_global_batch()
    return [*history, max_vio(router.route(x).counts_E)]


def test_frozen_scores_balance_at_once() -> None:
    router, x = frozen(skewed(8192, 64), "quantile", top_k=8)
    history = updates(router, x, 4)
    assert history[0] > 2
    assert history[1] < 0.25
    assert history[4] < 0.1


def test_each_row_of_the_histogram_holds_every_token() -> None:
    router = make("quantile", bins=100)
    for size in (10, 30, 24):
        router.count(router.route(tokens(size)))
    assert router.pending is not None
    assert router.pending.dtype == torch.int32
    assert (router.pending.sum(-1) == 64).all()


@pytest.mark.parametrize("bins", [50, 1000])
def test_within_one_bin_of_the_exact_quantile(bins: int) -> None:
    scores = skewed(3000, 16, seed=2)
    histogram, x = frozen(scores, "quantile", top_k=3, bins=bins)
    exact, _ = frozen(scores, "quantile_exact", top_k=3)
    assert histogram.bias is not None
    assert exact.bias is not None
    for _ in range(3):
        width = (histogram.bias.max() - histogram.bias.min() + 2).item() / bins
        exact.bias.copy_(histogram.bias)
        updates(histogram, x, 1)
        updates(exact, x, 1)
        # each quantile may be off by a bin to either side; the mean that is taken off moves all alike
        gaps = histogram.bias - exact.bias
        assert gaps.max() - gaps.min() <= 2 * width


def test_bias_has_zero_mean_and_replaces_the_old_one() -> None:
    scores = skewed(2000, 16, seed=3)
    router, x = frozen(scores, "quantile", top_k=3)
    assert router.bias is not None
    router.bias.copy_(torch.linspace(-0.5, 0.5, 16))  # a detour in the past leaves no trace beyond one batch
    updates(router, x, 6)
    assert router.bias.mean().abs() < 1e-6
    other, _ = frozen(scores, "quantile", top_k=3)
    updates(other, x, 6)
    assert other.bias is not None
    assert (router.bias - other.bias).abs().max() < 0.02


def test_shards_that_differ_are_pooled_before_the_quantile() -> None:
    generator = torch.Generator().manual_seed(4)
    shards = [torch.sigmoid(2 * torch.randn(16, generator=generator) + torch.randn(1024, 16, generator=generator))
              for _ in range(4)]  # fmt: skip
    whole, x = frozen(torch.cat(shards), "quantile", top_k=2)
    pooled, _ = frozen(shards[0], "quantile", top_k=2)
    for _ in range(8):
        updates(whole, x, 1)
        for part in x.split(1024):
            pooled.count(pooled.route(part))
        pooled.end_of_global_batch()
    assert whole.bias is not None
    assert pooled.bias is not None
    assert torch.equal(whole.bias, pooled.bias)
    assert max_vio(pooled.route(x).counts_E) < 0.2

    # what it is not: the mean of each shard's own quantiles
    averaged, _ = frozen(shards[0], "quantile", top_k=2)
    assert averaged.bias is not None
    for _ in range(8):
        mean = torch.zeros(16)
        for part in x.split(1024):
            shard, _ = frozen(shards[0], "quantile", top_k=2)
            assert shard.bias is not None
            shard.bias.copy_(averaged.bias)
            updates(shard, part, 1)
            mean += shard.bias / 4
        averaged.bias.copy_(mean)
    assert max_vio(averaged.route(x).counts_E) > 0.5


def test_softmax_scores_are_refused() -> None:
    with pytest.raises(ValueError, match="score=softmax: must be sigmoid with router=quantile"):
        QuantileSettings(score="softmax")


@pytest.mark.parametrize("bins", [0, 1, -5])
def test_too_few_bins_are_refused(bins: int) -> None:
    with pytest.raises(ValueError, match=f"bins={bins}: must lie in"):
        QuantileSettings(bins=bins)
