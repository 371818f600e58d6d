"""The mixture of experts on the full width, and what holds for both mixtures."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from k3lab.ffn.moe import MoESettings
from k3lab.ffn.swiglu import SwiGLU
from k3lab.model_dims import ModelDims
from tests.ffn.helpers import OPTIONS, gradients, inputs, make, whole_layer

both = pytest.mark.parametrize("name", ["moe", "latent_moe"])


@both
@pytest.mark.parametrize("shared", [0, 1, 2])
@pytest.mark.parametrize("activation", ["swiglu", "situ"])
def test_formula_and_every_gradient_in_fp64(name: str, shared: int, activation: str) -> None:
    layer = make(name, shared=shared, activation=activation).double()
    x = inputs(2, 9, 16).double().requires_grad_()
    y, routing = layer(x)
    assert routing is not None
    assert routing.counts_E.sum() == 2 * 9 * 2
    expected = whole_layer(layer, x.flatten(0, 1)).unflatten(0, (2, 9))
    torch.testing.assert_close(y, expected, atol=1e-12, rtol=1e-12)
    leaves = [x, *layer.parameters()]
    for a, b in zip(gradients(y, leaves), gradients(expected, leaves), strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-11)


@both
def test_padding_gets_an_output_and_no_count(name: str) -> None:
    layer, x = make(name), inputs(2, 9, 16)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 5:] = False
    y, routing = layer(x, mask)
    unmasked, _ = layer(x)
    torch.testing.assert_close(y, unmasked)
    assert routing is not None
    assert routing.counts_E.sum() == 14 * 2
    assert (routing.statistics.sum(-1) == 14).all()  # type: ignore[union-attr]


@both
def test_recomputation_gives_the_same_gradients(name: str) -> None:
    layer, x = make(name), inputs(2, 9, 16).requires_grad_()
    leaves = [x, *layer.parameters()]
    expected = gradients(layer(x)[0], leaves)
    found = gradients(checkpoint(layer, x, use_reentrant=False)[0], leaves)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


@both
@pytest.mark.parametrize("training", [True, False])
def test_compiles_without_graph_breaks(name: str, training: bool) -> None:
    layer, x = make(name).train(training), inputs(2, 9, 16).requires_grad_()
    leaves = [x, *layer.parameters()]
    expected, routing = layer(x)
    y, compiled_routing = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(y, expected)
    assert torch.equal(compiled_routing.ids_Tk, routing.ids_Tk)
    for a, b in zip(gradients(y, leaves), gradients(expected, leaves), strict=True):
        torch.testing.assert_close(a, b)


@both
def test_autocast_and_half_precision(name: str) -> None:
    layer, x = make(name), inputs(2, 9, 16)
    expected, routing = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = layer(x)
    assert y.dtype == torch.float32  # the dtype of x: the residual stream decides
    assert (y - expected).norm() < 0.02 * expected.norm()
    layer.bfloat16()
    y, routing = layer(x.bfloat16())
    assert y.dtype == torch.bfloat16
    assert routing is not None
    assert routing.weights_Tk.dtype == torch.float32
    assert (y - expected).norm() < 0.1 * expected.norm()


@both
def test_the_same_seed_gives_the_same_weights(name: str) -> None:
    a, b = make(name), make(name)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    experts = a.experts
    assert not torch.equal(experts.w_in[0], experts.w_in[1])
    assert experts.w_in.std().item() == pytest.approx(0.3, rel=0.1)


@both
def test_one_token(name: str) -> None:
    layer, x = make(name), inputs(3, 4, 16)
    y, _ = layer(x)
    one, routing = layer(x[1:2, 2:3])
    torch.testing.assert_close(one[0, 0], y[1, 2])
    assert routing is not None
    assert routing.counts_E.sum() == 2


@both
def test_a_token_that_is_not_finite_shows_in_its_output_alone(name: str) -> None:
    layer, x = make(name), inputs(1, 9, 16)
    expected, _ = layer(x)
    x[0, 4, 2] = torch.nan
    y, _ = layer(x)
    assert y[0, 4].isnan().all()
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    torch.testing.assert_close(y[0, others], expected[0, others])


@both
def test_needs_a_router(name: str) -> None:
    cls, settings = OPTIONS[name]
    with pytest.raises(ValueError, match=f"router=None: ffn={name} needs one"):
        cls(settings(), ModelDims(hidden_size=16, heads=2, head_dim=8), None)


def test_costs() -> None:
    layer = make("moe")  # width 16, 6 experts of 8, top-2, 2 shared
    one = 3 * 16 * 8
    assert sum(p.numel() for p in layer.parameters()) == 6 * one + 2 * one + 6 * 16
    assert layer.parameters_active() == 2 * one + 2 * one + 6 * 16
    assert layer.flops_per_token() == 2 * (2 * one + 2 * one + 6 * 16)


@both
def test_settings(name: str) -> None:
    settings_cls = OPTIONS[name][1]
    for top_k in (0, 8, 9):
        with pytest.raises(ValueError, match=rf"top_k={top_k}: must lie in \[1, 7\], below experts=8"):
            settings_cls(experts=8, top_k=top_k)
    with pytest.raises(ValueError, match="experts=1: must lie in"):
        settings_cls(experts=1)
    with pytest.raises(ValueError, match="activation=relu: must be one of"):
        settings_cls(activation="relu")
    with pytest.raises(ValueError, match="shared=-1"):
        settings_cls(shared=-1)


@both
def test_leading_dense_layers(name: str) -> None:
    settings_cls = OPTIONS[name][1]
    settings = settings_cls(leading_dense=2, dense_hidden=40, activation="swiglu")
    first = settings.at_layer(1)
    assert (first.name, first.hidden) == ("swiglu", 40)
    assert settings.at_layer(2) is settings
    dense = SwiGLU(first, ModelDims(hidden_size=16, heads=2, head_dim=8))
    assert dense.flops_per_token() == 6 * 16 * 40
    settings.check(SimpleNamespace(model=SimpleNamespace(layers=3)))
    with pytest.raises(ValueError, match=r"ffn\.leading_dense=2: must be below model\.layers=2"):
        settings.check(SimpleNamespace(model=SimpleNamespace(layers=2)))


def test_warns_when_the_loss_cannot_train_the_router() -> None:
    normalised, plain = (SimpleNamespace(router=SimpleNamespace(normalise=n)) for n in (True, False))
    assert "every weight is 1" in MoESettings(top_k=1).warnings(normalised)[0]
    assert MoESettings(top_k=1).warnings(plain) == []
    assert MoESettings().warnings(normalised) == []
