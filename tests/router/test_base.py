"""What holds for every router: purity, counting, padding, state, precision, recomputation, compilation."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from k3lab.router.base import Router, end_of_global_batch
from tests.router.helpers import BIASED, OPTIONS, make, same, state, tokens

every_router = pytest.mark.parametrize("name", OPTIONS)
every_biased = pytest.mark.parametrize("name", BIASED)


def train_batch(router: Router, *micro_batches: torch.Tensor) -> None:
    for x in micro_batches:
        router.count(router.route(x))
    router.end_of_global_batch()


@every_router
def test_route_changes_nothing(name: str) -> None:
    router, x = make(name), tokens(64)
    train_batch(router, x)
    before = state(router)
    for mode in (True, False):
        router.train(mode).route(x)
    assert same(before, state(router))


@every_router
def test_training_and_evaluation_choose_the_same(name: str) -> None:
    router, x = make(name), tokens(64)
    for _ in range(3):
        train_batch(router, x)
    trained, evaluated = router.train().route(x), router.eval().route(x)
    assert torch.equal(trained.ids_Tk, evaluated.ids_Tk)
    assert torch.equal(trained.weights_Tk, evaluated.weights_Tk)
    assert evaluated.statistics is None


@every_router
def test_choices_are_distinct_and_all_of_them_are_counted(name: str) -> None:
    router = make(name, experts=8, top_k=3)
    routing = router.route(tokens(50))
    assert routing.ids_Tk.shape == (50, 3)
    assert routing.ids_Tk.dtype == torch.int64
    assert all(len(set(row)) == 3 for row in routing.ids_Tk.tolist())
    assert routing.counts_E.sum() == 150
    assert torch.equal(routing.counts_E, routing.ids_Tk.flatten().bincount(minlength=8))


@every_router
@pytest.mark.parametrize(("scale", "normalise"), [(1.0, True), (2.5, True), (2.0, False)])
def test_weights(name: str, scale: float, normalise: bool) -> None:
    router, x = make(name, scale=scale, normalise=normalise), tokens(32)
    routing = router.route(x)
    logits = x @ router.weight.T
    softmax = router.settings.score == "softmax"
    scores = (logits.softmax(-1) if softmax else logits.sigmoid()).gather(1, routing.ids_Tk)
    expected = scale * (scores / scores.sum(-1, keepdim=True) if normalise else scores)
    torch.testing.assert_close(routing.weights_Tk, expected)


@every_biased
def test_bias_selects_but_never_weighs(name: str) -> None:
    router = make(name, experts=4, top_k=2, width=4, normalise=False)
    assert router.bias is not None
    with torch.no_grad():
        router.weight.copy_(torch.eye(4))
        router.bias.copy_(torch.tensor([10.0, 0, 0, 0]))
    routing = router.route(torch.tensor([[-2.0, 1, 0, -1]]))
    assert routing.ids_Tk.tolist() == [[0, 1]]
    torch.testing.assert_close(routing.weights_Tk, torch.sigmoid(torch.tensor([[-2.0, 1]])))


@every_biased
def test_a_batch_is_routed_by_the_bias_of_the_batch_before(name: str) -> None:
    router, x = make(name), tokens(64)
    assert router.bias is not None
    first = router.route(x)
    router.count(first)
    assert not router.bias.any()
    assert torch.equal(router.route(x).ids_Tk, first.ids_Tk)
    router.end_of_global_batch()
    assert router.bias.any()


@every_biased
def test_micro_batches_add_up_to_one_update_written_in_place(name: str) -> None:
    x = tokens(64)
    whole, parts = make(name), make(name)
    assert parts.bias is not None
    address = parts.bias.data_ptr()
    for _ in range(3):
        train_batch(whole, x)
        train_batch(parts, *x.split([10, 30, 4, 20]))
    assert same(state(whole), state(parts))
    assert parts.bias.data_ptr() == address
    assert "bias" in parts.state_dict()
    assert "pending" in parts.state_dict()


@every_router
def test_checkpoint_between_two_micro_batches(name: str) -> None:
    x = tokens(64)
    straight, resumed = make(name), make(name)
    for router in (straight, resumed):
        train_batch(router, x)
        router.count(router.route(x[:40]))
    restored = make(name)
    restored.load_state_dict(state(resumed))
    for router in (straight, restored):
        router.count(router.route(x[40:]))
        router.end_of_global_batch()
    assert same(state(straight), state(restored))


@every_biased
def test_no_tokens_keep_the_bias(name: str) -> None:
    router, x = make(name), tokens(64)
    train_batch(router, x)
    before = state(router)
    router.end_of_global_batch()
    assert same(before, state(router))
    router.count(router.route(x, torch.zeros(64, dtype=torch.bool)))
    router.end_of_global_batch()
    assert same(before, state(router))


@every_biased
def test_frozen_in_evaluation(name: str) -> None:
    router, x = make(name), tokens(64)
    train_batch(router, x)
    before = state(router)
    router.eval()
    for _ in range(3):
        train_batch(router, x)
    assert same(before, state(router))


@every_biased
def test_validation_between_micro_batches_is_not_counted(name: str) -> None:
    plain, validated = make(name), make(name)
    for router in (plain, validated):
        for x in tokens(64).split(16):
            router.count(router.route(x))
            if router is validated:
                router.eval().route(tokens(100, seed=5))
                router.train()
        router.end_of_global_batch()
    assert same(state(plain), state(validated))


@every_router
def test_padding_is_routed_and_left_out_of_statistics(name: str) -> None:
    x = tokens(64)
    mask = torch.ones(64, dtype=torch.bool)
    mask[[3, 17, 18, 63]] = False
    padded, plain = make(name), make(name)
    for _ in range(2):
        routing, expected = padded.route(x, mask), plain.route(x[mask])
        assert routing.ids_Tk.shape == (64, 2)
        assert torch.equal(routing.ids_Tk[mask], expected.ids_Tk)
        assert torch.equal(routing.counts_E, expected.counts_E)
        if routing.aux_loss is not None:
            torch.testing.assert_close(routing.aux_loss, expected.aux_loss)
        padded.count(routing)
        plain.count(expected)
        assert same(state(padded), state(plain))
        end_of_global_batch([padded, plain])
    assert same(state(padded), state(plain))


@every_router
def test_mask_with_as_many_tokens_as_experts(name: str) -> None:
    x = tokens(8)
    mask = torch.tensor([True, False, True, True, False, True, True, True])
    padded, plain = make(name), make(name)
    padded.count(padded.route(x, mask))
    plain.count(plain.route(x[mask]))
    assert same(state(padded), state(plain))
    assert padded.route(x, mask).counts_E.sum() == 12


@every_router
@pytest.mark.parametrize("cast", ["bfloat16", "half", "double"])
def test_casting_the_model_keeps_the_state(name: str, cast: str) -> None:
    router = make(name)
    train_batch(router, tokens(64))
    router.count(router.route(tokens(10)))
    before = {n: b.clone() for n, b in router.named_buffers()}
    address = router.bias.data_ptr() if router.bias is not None else None
    getattr(router, cast)()
    assert router.weight.dtype == getattr(torch, cast)
    assert same(before, dict(router.named_buffers()))
    assert address is None or (router.bias is not None and router.bias.data_ptr() == address)


@every_router
def test_ties_go_to_the_lower_id(name: str) -> None:
    router = make(name, experts=12, top_k=5, width=4)
    with torch.no_grad():
        router.weight.copy_(torch.ones(12, 4))
    x = tokens(40, width=4)
    first, second = router.route(x), router.route(x)
    assert first.ids_Tk.tolist() == [[0, 1, 2, 3, 4]] * 40
    assert torch.equal(first.ids_Tk, second.ids_Tk)


@every_router
def test_router_works_in_fp32_under_autocast(name: str) -> None:
    router, x = make(name), tokens(256)
    expected = router.route(x)
    with torch.autocast("cpu", torch.bfloat16):
        routing = router.route(x)
    assert routing.weights_Tk.dtype == torch.float32
    assert torch.equal(routing.ids_Tk, expected.ids_Tk)
    assert torch.equal(routing.weights_Tk, expected.weights_Tk)


@every_router
def test_gradient_in_fp64(name: str) -> None:
    router, x = make(name, experts=6, top_k=3).double(), tokens(5).double().requires_grad_()
    assert router.route(x).weights_Tk.dtype == torch.float64

    def weights(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(router, {"weight": weight}, (x,))

    router.forward = lambda x: router.route(x).weights_Tk  # type: ignore[method-assign]
    assert torch.autograd.gradcheck(weights, (x, router.weight))


@every_router
@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_counts_once(name: str, reentrant: bool) -> None:
    x = tokens(64)
    plain, recomputed = make(name), make(name)
    for router in (plain, recomputed):
        inputs = x.clone().requires_grad_()
        if router is recomputed:
            outputs = checkpoint(lambda x, r=router: tuple(r.route(x)), inputs, use_reentrant=reentrant)
            routing = type(plain.route(x))(*outputs)
        else:
            routing = router.route(inputs)
        (routing.weights_Tk[:, 0].square().sum() + (routing.aux_loss or 0)).backward()
        router.count(routing)
    assert same(state(plain), state(recomputed))
    assert torch.equal(plain.weight.grad, recomputed.weight.grad)  # type: ignore[arg-type]
    if name == "quantile":
        assert (recomputed.pending.sum(-1) == 64).all()  # type: ignore[union-attr]


@every_router
@pytest.mark.parametrize("masked", [False, True])
def test_compiles_without_graph_breaks(name: str, masked: bool) -> None:
    router, x = make(name), tokens(48)
    train_batch(router, x)
    mask = (torch.arange(48) % 5 > 0) if masked else None
    expected = router.route(x, mask)
    routing = torch.compile(router.route, fullgraph=True, backend="aot_eager")(x, mask)
    assert torch.equal(routing.ids_Tk, expected.ids_Tk)
    torch.testing.assert_close(routing.weights_Tk, expected.weights_Tk)
    assert torch.equal(routing.counts_E, expected.counts_E)
    if name == "quantile":
        assert torch.equal(routing.statistics, expected.statistics)
    routing.weights_Tk.square().sum().backward()
    assert router.weight.grad is not None


@pytest.mark.parametrize("top_k", [0, 8, 9])
@every_router
def test_k_is_below_the_number_of_experts(name: str, top_k: int) -> None:
    with pytest.raises(ValueError, match=rf"top_k={top_k}: must lie in \[1, 7\], below experts=8"):
        make(name, experts=8, top_k=top_k)


@every_router
def test_wrong_shapes_are_named(name: str) -> None:
    router = make(name)
    with pytest.raises(ValueError, match=r"x has shape \(4, 5\): must be \[tokens, 16\]"):
        router.route(torch.zeros(4, 5))
    for mask in (torch.ones(8, dtype=torch.bool), torch.ones(4), torch.ones(4, 8, dtype=torch.bool)):
        with pytest.raises(ValueError, match=r"mask is .* one entry for each of 4 tokens"):
            router.route(torch.zeros(4, 16), mask)


@every_router
def test_tokens_that_are_not_finite_disturb_no_other(name: str) -> None:
    router, x = make(name), tokens(16)
    expected = router.route(x)
    x[3, 5], x[7, 1] = torch.nan, torch.inf
    routing = router.route(x)
    others = [t for t in range(16) if t not in (3, 7)]
    assert torch.equal(routing.ids_Tk[others], expected.ids_Tk[others])
    assert routing.ids_Tk.min() >= 0
    assert routing.ids_Tk.max() < 8


def test_routers_of_several_kinds_and_sizes_update_together() -> None:
    def build() -> list[Router]:
        return [make("quantile"), make("sign_bias"), make("quantile"), make("topk"), make("quantile", top_k=3),
                make("quantile", bins=50), make("quantile_exact"), make("sign_bias")]  # fmt: skip

    together, apart = build(), build()
    for batch in range(2):
        for seed, (a, b) in enumerate(zip(together, apart, strict=True)):
            x = tokens(64, seed=10 * batch + seed)
            a.count(a.route(x))
            b.count(b.route(x))
            b.end_of_global_batch()
        end_of_global_batch(together)
    assert all(same(state(a), state(b)) for a, b in zip(together, apart, strict=True))
