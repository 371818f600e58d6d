"""The probe sees what the model does, and leaves no trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from k3lab.diagnostics.probe import probe


def reference(model: Any, batch: dict[str, Tensor]) -> dict[str, list[Tensor]]:
    """The same quantities from the model's own loop, written out."""
    stream = model.residual.start(model.embedding(batch["tokens"]))
    mixtures, outputs = [], []
    for i in range(6):
        mixtures.append(model.residual.mixture(stream, i))
        x = model.residual.read(stream, i)
        layer = model.layers[i // 2]
        outputs.append(layer.mixer(x) if i % 2 == 0 else layer.ffn(x, batch.get("mask"))[0])
        outputs[-1].retain_grad()
        stream = model.residual.write(stream, i, outputs[-1])
    mixtures.append(model.residual.mixture(stream, 6))
    logits = model.head(model.residual.finish(stream))
    F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum").backward()
    grads = [f.grad for f in outputs]
    model.zero_grad()
    return {"mixtures": mixtures, "outputs": outputs, "grads": grads}


def test_matches_the_models_own_loop(model: Any, batch: dict[str, Tensor]) -> None:
    record = probe(model, batch, sequences=3)
    for key, expected in reference(model, batch).items():
        found = getattr(record, key)
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b.detach().flatten(0, 1), rtol=1e-5, atol=1e-7)
    for i, weights in enumerate(record.weights):
        if weights is not None:
            torch.testing.assert_close(weights.sum(0), torch.ones(36))
            assert len(weights) == (1, 2, 2, 3, 3, 4, 4)[i]


def test_leaves_no_trace(make_model: Any, batch: dict[str, Tensor]) -> None:
    model = make_model("block_attnres", dropout=0.5)
    model.layers[1].eval()  # a flag that differs from its parent's must come back as it was
    flags = [m.training for m in model.modules()]
    state = {k: v.clone() for k, v in model.state_dict().items()}
    rng = torch.get_rng_state()
    probe(model, batch, sequences=2)
    assert torch.equal(torch.get_rng_state(), rng)
    assert [m.training for m in model.modules()] == flags
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_leaves_no_trace_when_the_model_raises(make_model: Any, batch: dict[str, Tensor]) -> None:
    model = make_model("prenorm")
    tokens = batch["tokens"].clone()
    tokens[0, 0] = 999
    with pytest.raises(IndexError):
        probe(model, {**batch, "tokens": tokens})
    assert all(m.training for m in model.modules())
    assert not any(m._forward_hooks for m in model.modules())


def test_existing_gradients_and_frozen_parameters(make_model: Any, batch: dict[str, Tensor]) -> None:
    model = make_model("prenorm").requires_grad_(False)
    model.head.weight.requires_grad_(True)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    record = probe(model, batch)
    assert torch.equal(model.head.weight.grad, torch.ones_like(model.head.weight))
    assert all(g.abs().max() > 0 for g in record.grads)


def test_works_inside_no_grad(model: Any, batch: dict[str, Tensor]) -> None:
    with torch.no_grad():
        record = probe(model, batch)
        assert not torch.is_grad_enabled()
    assert all(g.abs().max() > 0 for g in record.grads)


def test_padding_is_left_out(model: Any, batch: dict[str, Tensor]) -> None:
    mask = torch.ones_like(batch["tokens"], dtype=torch.bool)
    mask[0, -3:] = False
    mask[1, -1] = False
    record = probe(model, {**batch, "mask": mask}, sequences=2, sample_tokens=1000)
    everything = probe(model, batch, sequences=2)
    kept = mask[:2].flatten().nonzero().squeeze(1)
    assert len(kept) == 20
    for a, b in zip(record.mixtures, everything.mixtures, strict=True):
        torch.testing.assert_close(a, b[kept])
    assert all(counts.sum() == 20 * 2 for counts in record.counts.values())
    assert record.sample.tolist() == list(range(20))


def test_decays_of_the_recurrent_layers_alone(model: Any, batch: dict[str, Tensor]) -> None:
    record = probe(model, batch, sequences=3, sample_tokens=5)
    assert record.sample.tolist() == [0, 7, 14, 21, 28]  # of 36 tokens
    assert set(record.log_decays) == {0, 1}
    g_MHK, bound = record.log_decays[0]
    assert bound == -5
    mixer = model.layers[0].mixer
    x = model.residual.read(model.residual.start(model.embedding(batch["tokens"])), 0)
    expected = mixer.decay.log_decay(mixer.decay_logit(x).unflatten(-1, (2, 4))).flatten(0, 1)[record.sample]
    torch.testing.assert_close(g_MHK, expected)


def test_routed_layers_are_counted_by_decoder_layer(model: Any, batch: dict[str, Tensor]) -> None:
    record = probe(model, batch, sequences=1)
    assert list(record.counts) == [1, 2]
    assert all(counts.sum() == 12 * 2 for counts in record.counts.values())


def test_a_compiled_model_is_run_eagerly(make_model: Any, batch: dict[str, Tensor]) -> None:
    model = make_model("prenorm")
    calls = []

    def backend(graph: Any, inputs: Any) -> Any:
        calls.append(graph)
        return graph.forward

    for layer in model.layers:
        layer.mixer.compile(backend=backend)
    probe(model, batch)
    assert calls == []
    model(batch["tokens"])
    compiled = len(calls)
    assert compiled > 0
    probe(model, batch)
    model(batch["tokens"])
    assert len(calls) == compiled  # and nothing is compiled again afterwards
    torch.compiler.reset()
