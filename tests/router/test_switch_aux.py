"""The auxiliary loss: its value, its gradient, padding and accumulation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from k3lab.router.base import Router
from k3lab.router.switch_aux import SwitchAux, SwitchAuxSettings
from tests.router.helpers import make, tokens

both_scores = pytest.mark.parametrize("score", ["softmax", "sigmoid"])


def gate(experts: int, top_k: int, **settings: object) -> Router:
    """A router whose logits are its input."""
    router = make("switch_aux", experts, top_k, experts, **settings)
    with torch.no_grad():
        router.weight.copy_(torch.eye(experts))
    return router


def reference(logits: Tensor, ids: Tensor, score: str, alpha: float) -> Tensor:
    """α·E·Σ_i f_i·P_i, written out expert by expert."""
    tokens, experts = logits.shape
    total = torch.zeros((), dtype=logits.dtype)
    scores = logits.softmax(-1) if score == "softmax" else logits.sigmoid()
    for i in range(experts):
        share = (ids == i).sum() / (tokens * ids.shape[1])
        total = total + share * torch.stack([row[i] / row.sum() for row in scores]).mean()
    return alpha * experts * total


@both_scores
def test_balanced_gives_alpha(score: str) -> None:
    router = gate(6, 2, score=score, alpha=0.3)
    # token t wants experts t and t+1: every expert has two of the twelve choices
    x = 3 * (torch.eye(6) + torch.eye(6).roll(1, dims=1))
    routing = router.route(x)
    assert routing.counts_E.tolist() == [2] * 6
    torch.testing.assert_close(routing.aux_loss, torch.tensor(0.3))


@both_scores
def test_collapsed_costs_more(score: str) -> None:
    router = gate(6, 2, score=score, alpha=0.3)
    x = torch.tensor([5.0, 5, 0, 0, 0, 0]).expand(12, 6)
    routing = router.route(x)
    assert routing.counts_E.tolist() == [12, 12, 0, 0, 0, 0]
    assert routing.aux_loss is not None
    assert routing.aux_loss.item() > (0.85 if score == "softmax" else 0.39)


@both_scores
@pytest.mark.parametrize("masked", [False, True])
def test_value_and_gate_gradient_equal_the_formula(score: str, masked: bool) -> None:
    router, x = make("switch_aux", score=score, alpha=0.07).double(), tokens(40).double()
    mask = torch.arange(40) % 4 > 0 if masked else None
    routing = router.route(x, mask)
    real = x if mask is None else x[mask]
    ids = routing.ids_Tk if mask is None else routing.ids_Tk[mask]
    expected = reference(real @ router.weight.T, ids, score, 0.07)
    assert routing.aux_loss is not None
    torch.testing.assert_close(routing.aux_loss, expected)
    (found,) = torch.autograd.grad(routing.aux_loss, router.weight)
    (wanted,) = torch.autograd.grad(expected, router.weight)
    assert found.abs().max() > 1e-4
    torch.testing.assert_close(found, wanted)


def test_equal_micro_batches_weighted_by_tokens_give_the_loss_of_one() -> None:
    router, x = make("switch_aux").double(), tokens(40).double()
    whole = router.route(x.repeat(4, 1)).aux_loss
    parts = [router.route(x).aux_loss for _ in range(4)]
    accumulated = sum(0.25 * part for part in parts)
    assert isinstance(accumulated, Tensor)
    torch.testing.assert_close(accumulated, whole)
    (found,) = torch.autograd.grad(accumulated, router.weight)
    assert whole is not None
    (wanted,) = torch.autograd.grad(whole, router.weight)
    torch.testing.assert_close(found, wanted)


def test_padding_alone_costs_nothing() -> None:
    router = make("switch_aux")
    routing = router.route(tokens(8), torch.zeros(8, dtype=torch.bool))
    assert routing.aux_loss is not None
    assert routing.aux_loss.item() == 0
    routing.aux_loss.backward()
    assert not router.weight.grad.any()  # type: ignore[union-attr]


def test_the_loss_is_returned_not_stored() -> None:
    router = make("switch_aux")
    router.route(tokens(8))
    assert list(router.state_dict()) == ["weight"]
    assert not [k for k, v in vars(router).items() if isinstance(v, Tensor)]


def test_descending_the_loss_balances() -> None:
    torch.manual_seed(0)  # the start of the router's weights
    router = SwitchAux(SwitchAuxSettings(alpha=1.0), 16, 8, 2)
    x = tokens(256)
    first = router.route(x)
    optimizer = torch.optim.SGD(router.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        loss = router.route(x).aux_loss
        assert loss is not None
        loss.backward()
        optimizer.step()
    last = router.route(x)
    assert last.counts_E.max() < 0.7 * first.counts_E.max()


def test_settings() -> None:
    with pytest.raises(ValueError, match="alpha=-1"):
        SwitchAuxSettings(alpha=-1)
