"""The exact quantile: its defining inequality, convergence, and the scores that it keeps."""

from __future__ import annotations

import pytest
import torch

from k3lab.router.quantile_exact import QuantileExactSettings
from tests.router.helpers import frozen, make, max_vio, tokens
from tests.router.test_quantile import skewed, updates


def test_every_expert_gets_its_share_of_the_margins() -> None:
    scores, k = skewed(500, 12, seed=1), 3
    router, x = frozen(scores, "quantile_exact", top_k=k)
    assert router.bias is not None
    for _ in range(3):
        s = router.route(x).statistics
        assert s is not None
        cutoff_T1 = (s + router.bias).topk(k + 1).values[:, -1:]
        margins_TE = (cutoff_T1 - s).double()
        updates(router, x, 1)
        share = 500 * k / 12
        # the bias is known up to the mean that was taken off: look for one shift that fits every expert
        low = torch.stack([m.sort().values[int(-(-share // 1)) - 1] for m in margins_TE.T])
        shift = (low - router.bias).median()
        new_E = router.bias.double() + shift
        assert ((margins_TE < new_E - 1e-6).sum(0) <= share).all()
        assert ((margins_TE <= new_E + 1e-6).sum(0) >= share).all()


def test_frozen_scores_balance_closely() -> None:
    router, x = frozen(skewed(8192, 64), "quantile_exact", top_k=8)
    history = updates(router, x, 8)
    assert history[1] < 0.25
    assert history[4] < 0.1
    assert history[8] < 0.05
    assert max_vio(router.route(x).counts_E) == history[8]


def test_keeps_the_scores_of_real_tokens_until_the_batch_ends() -> None:
    router = make("quantile_exact")
    mask = torch.arange(20) % 4 > 0
    router.count(router.route(tokens(20), mask))
    router.count(router.route(tokens(7)))
    assert router.pending is not None
    assert router.pending.shape == (15 + 7, 8)
    torch.testing.assert_close(router.pending[:15], (tokens(20)[mask] @ router.weight.T).sigmoid().detach())
    router.end_of_global_batch()
    assert router.pending.shape == (0, 8)


def test_loading_takes_on_the_number_of_tokens() -> None:
    source, target = make("quantile_exact"), make("quantile_exact")
    source.count(source.route(tokens(20)))
    target.count(target.route(tokens(5)))
    target.load_state_dict(source.state_dict())
    assert target.pending is not None
    assert target.pending.shape == (20, 8)
    target.load_state_dict(make("quantile_exact").state_dict())
    assert target.pending.shape == (0, 8)


def test_softmax_scores_are_refused() -> None:
    with pytest.raises(ValueError, match="score=softmax: must be one of sigmoid"):
        QuantileExactSettings(score="softmax")
