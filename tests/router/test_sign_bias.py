"""Balancing by the sign of the load error."""

from __future__ import annotations

import pytest
import torch

from k3lab.router.sign_bias import SignBiasSettings
from tests.router.helpers import frozen, make, max_vio


@pytest.mark.parametrize("score", ["sigmoid", "softmax"])
def test_one_step(score: str) -> None:
    router = make("sign_bias", experts=4, top_k=1, gamma=0.25, score=score)
    assert router.bias is not None
    router.update(torch.tensor([5, 1, 2, 0]))  # mean 2
    assert router.bias.tolist() == [-0.25, 0.25, 0.0, 0.25]
    router.update(torch.tensor([5, 0, 0, 0]))  # mean 1.25, which no count equals
    assert router.bias.tolist() == [-0.5, 0.5, 0.25, 0.5]


def test_counts_of_the_whole_batch_decide() -> None:
    router = make("sign_bias", experts=4, top_k=1, width=4, gamma=0.5)
    assert router.bias is not None
    with torch.no_grad():
        router.weight.copy_(torch.eye(4))
    for expert in (0, 1, 2, 3):  # each micro-batch is uneven, the global batch is not
        router.count(router.route(4 * torch.eye(4)[[expert] * 8]))
    assert router.pending is not None
    assert router.pending.tolist() == [8, 8, 8, 8]
    router.end_of_global_batch()
    assert not router.bias.any()


def test_small_steps_need_hundreds_of_batches() -> None:
    generator = torch.Generator().manual_seed(0)
    skew = torch.randn(64, generator=generator)
    scores = torch.sigmoid(torch.randn(2048, 64, generator=generator) + skew)
    router, x = frozen(scores, "sign_bias", top_k=8)
    history = []
    for _ in range(200):
        routing = router.route(x)
        history.append(max_vio(routing.counts_E))
        router.count(routing)
        router.end_of_global_batch()
    assert min(history) > 0.25
    assert history[-1] < 0.8 * history[0]


def test_settings() -> None:
    with pytest.raises(ValueError, match="gamma=0"):
        SignBiasSettings(gamma=0.0)
    with pytest.raises(ValueError, match="score=relu"):
        SignBiasSettings(score="relu")
