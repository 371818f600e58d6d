"""The router without balancing."""

from __future__ import annotations

import pytest
import torch

from k3lab.router.topk import TopKSettings
from tests.router.helpers import make, tokens


@pytest.mark.parametrize("score", ["sigmoid", "softmax"])
def test_the_highest_scores_win(score: str) -> None:
    router, x = make("topk", score=score), tokens(64)
    routing = router.route(x)
    assert torch.equal(routing.ids_Tk, (x @ router.weight.T).topk(2).indices)


def test_keeps_no_state() -> None:
    router = make("topk")
    router.count(router.route(tokens(64)))
    router.end_of_global_batch()
    assert router.bias is None
    assert list(router.state_dict()) == ["weight"]


def test_settings() -> None:
    with pytest.raises(ValueError, match="score=sigmiod: must be one of sigmoid, softmax; did you mean 'sigmoid'"):
        TopKSettings(score="sigmiod")
    with pytest.raises(ValueError, match="scale=0"):
        TopKSettings(scale=0)
