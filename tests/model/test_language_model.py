"""The whole model: causality, decoding, precision, compilation, padding, reproducible starts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from k3lab.config.registry import options
from k3lab.model.build import build_model
from k3lab.model.language_model import LanguageModel

VOCAB = 11


def make(compose: Callable[..., Any], seed: int = 0, **changes: Any) -> LanguageModel:
    torch.manual_seed(seed)
    return build_model(compose(init_std=0.2, **changes), VOCAB)


def tokens(batch: int, time: int) -> torch.Tensor:
    return torch.randint(VOCAB, (batch, time), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("residual", options("residual"))
@pytest.mark.parametrize("ffn", options("ffn"))
def test_is_causal_and_decodes_like_it_trains(compose: Callable[..., Any], residual: str, ffn: str) -> None:
    model = make(compose, residual=residual, ffn=ffn).double().eval()
    x = tokens(2, 21)
    with torch.no_grad():
        whole = model(x).logits_BTV
        prefix = model(x[:, :13]).logits_BTV
        assert torch.equal(prefix, whole[:, :13]) or (prefix - whole[:, :13]).abs().max() < 1e-12
        for lengths in ([1] * 21, [9, 1, 11]):
            caches = model.new_caches(2)
            decoded = torch.cat([model(part, caches=caches).logits_BTV for part in x.split(lengths, dim=1)], dim=1)
            torch.testing.assert_close(decoded, whole, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("mixers", [("kda",), ("mla",), ("softmax_attention",), ("kda", "softmax_attention")])
@pytest.mark.parametrize("tie", [False, True])
def test_every_parameter_learns(compose: Callable[..., Any], mixers: tuple, tie: bool) -> None:
    model = make(compose, mixers=mixers, tie_embeddings=tie)
    if hasattr(model.residual, "queries"):
        with torch.no_grad():
            for query in model.residual.parameters():
                query.add_(0.1)
    out = model(tokens(4, 32))
    F.cross_entropy(out.logits_BTV.flatten(0, 1), tokens(4, 32).flatten()).backward()
    silent = [k for k, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert [k for k in silent if not k.startswith("residual.")] == []
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_same_seed_same_weights_and_the_caller_s_seed_alone_decides(compose: Callable[..., Any]) -> None:
    first, second, third = make(compose), make(compose), make(compose, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.embedding.weight, third.embedding.weight)
    assert not torch.equal(first.layers[0].mixer.q.weight, first.layers[1].mixer.q.weight)


def test_matrices_start_with_the_set_standard_deviation(compose: Callable[..., Any]) -> None:
    model = build_model(compose(hidden_size=64, layers=2, init_std=0.006), 512)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and parameter.numel() > 4000 and "router" not in name and "residual" not in name:
            assert parameter.std().item() == pytest.approx(0.006, rel=0.1), name


def test_routings_match_the_routers_in_order(compose: Callable[..., Any]) -> None:
    model = make(compose, ffn=("latent_moe", {"leading_dense": 1, "experts": 5, "top_k": 2}))
    routings = model(tokens(2, 8)).routings
    assert len(routings) == len(model.routers) == 2
    for router, routing in zip(model.routers, routings, strict=True):
        assert routing.counts_E.sum() == 2 * 8 * router.top_k
    assert model.layers[0].ffn.router is None
    assert make(compose, ffn="swiglu")(tokens(1, 4)).routings == ()


def test_padding_at_the_end_changes_no_real_token_and_no_count(compose: Callable[..., Any]) -> None:
    model = make(compose).double()
    x = tokens(1, 12)
    padded = F.pad(x, (0, 5), value=3)
    mask = torch.arange(17)[None] < 12
    plain, masked = model(x), model(padded, mask)
    torch.testing.assert_close(masked.logits_BTV[:, :12], plain.logits_BTV, rtol=1e-9, atol=1e-12)
    for a, b in zip(plain.routings, masked.routings, strict=True):
        assert torch.equal(a.counts_E, b.counts_E)


@pytest.mark.parametrize("mixers", [("kda", "mla"), ("mamba2", "softmax_attention"), ("gated_deltanet",)])
def test_a_packed_document_gives_what_it_gives_alone(compose: Callable[..., Any], mixers: tuple) -> None:
    """In fp64, with experts and a residual topology between; the row's end is padding."""
    model = make(compose, mixers=mixers).double()
    x = tokens(2, 40)
    lengths = [[1, 17, 20, 2], [30, 10]]
    ids = torch.stack([torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)) for row in lengths])
    mask = torch.arange(40)[None] < torch.tensor([[38], [40]])
    packed = model(x, mask, documents_BT=ids.int())
    for b, row in enumerate(lengths):
        for start, length in ((sum(row[:i]), row[i]) for i in range(len(row))):
            alone = model(x[b : b + 1, start : start + length]).logits_BTV
            torch.testing.assert_close(packed.logits_BTV[b : b + 1, start : start + length], alone, rtol=0, atol=1e-10)
    assert all(r.counts_E.sum() == 78 * router.top_k for r, router in zip(packed.routings, model.routers, strict=True))


def test_a_compiled_model_meets_few_shapes_of_documents(compose: Callable[..., Any]) -> None:
    model = make(compose, mixers=("kda",), ffn="swiglu", residual="prenorm", layers=1)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model, backend="aot_eager", dynamic=False)
    x, graphs = tokens(2, 12), []
    for documents in (5, 7):
        ids = torch.arange(24).clamp(max=documents - 1).view(2, 12)
        expected = model(x, documents_BT=ids).logits_BTV
        torch.testing.assert_close(compiled(x, documents_BT=ids).logits_BTV, expected)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1] > 0


def test_decoding_refuses_packed_sequences(compose: Callable[..., Any]) -> None:
    model = make(compose, layers=2)
    with pytest.raises(ValueError, match="documents: decode one document a sequence"):
        model(tokens(1, 4), caches=model.new_caches(1), documents_BT=torch.zeros(1, 4).int())


def test_a_tied_head_owns_nothing_and_follows_copies(compose: Callable[..., Any]) -> None:
    model = make(compose, tie_embeddings=True)
    assert not any(key.startswith("head") for key in model.state_dict())
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.embedding.weight.zero_()
    x = tokens(1, 3)
    assert torch.equal(twin(x).logits_BTV, torch.zeros(1, 3, VOCAB))
    assert model(x).logits_BTV.abs().max() > 0


def test_autocast_gives_bf16_logits_and_fp32_gradients(compose: Callable[..., Any]) -> None:
    model = make(compose, ffn="swiglu")  # with experts, rounding may move a token to others
    x = tokens(2, 16)
    exact = model(x).logits_BTV
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(x).logits_BTV
    rounded.float().logsumexp(-1).mean().backward()
    assert rounded.dtype == torch.bfloat16
    assert (rounded - exact).norm() / exact.norm() < 0.05
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in model.parameters())


def test_dropout_is_drawn_from_the_global_generator(compose: Callable[..., Any]) -> None:
    model = make(compose, dropout=0.3)
    x = tokens(1, 6)
    outputs = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        outputs.append(model(x).logits_BTV)
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("residual", options("residual"))
def test_compiles_without_a_graph_break(compose: Callable[..., Any], residual: str) -> None:
    model = make(compose, residual=(residual, {"block_layers": 1} if residual == "block_attnres" else {}), layers=2)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = tokens(2, 8)
    out = compiled(x)
    torch.testing.assert_close(out.logits_BTV, model(x).logits_BTV)
    out.logits_BTV.square().mean().backward()
    assert len(out.routings) == 2
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x).logits_BTV, model(x).logits_BTV)
