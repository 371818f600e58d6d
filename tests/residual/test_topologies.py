"""What holds for every topology: pure streams, checkpointing, memory linear in depth, no graph break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from k3lab.residual.base import Residual
from k3lab.residual.block_attnres import BlockAttnRes, BlockAttnResSettings
from k3lab.residual.full_attnres import FullAttnRes, FullAttnResSettings
from k3lab.residual.prenorm import PreNorm, PreNormSettings

BUILD: dict[str, Callable[[int, int], Residual]] = {
    "prenorm": lambda sublayers, width: PreNorm(PreNormSettings(), sublayers, width, 1e-5),
    "full_attnres": lambda sublayers, width: FullAttnRes(FullAttnResSettings(), sublayers, width, 1e-5),
    "block_attnres": lambda sublayers, width: BlockAttnRes(BlockAttnResSettings(), sublayers, width, 1e-5),
}
every_topology = pytest.mark.parametrize("name", BUILD)


class Depth(nn.Module):
    """A model without time: L sublayers of one matrix each, two of them a decoder layer."""

    def __init__(self, residual: Residual, recompute: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        width = residual.hidden_size
        self.residual = residual
        self.sublayers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(residual.sublayers))
        self.recompute = recompute
        self.leaves: list[int] = []

    def layer(self, stream: Any, index: int) -> Any:
        for i in (2 * index, 2 * index + 1):
            stream = self.residual.write(stream, i, self.sublayers[i](self.residual.read(stream, i)).tanh())
        return stream

    def forward(self, x_BTD: Tensor) -> Tensor:
        stream = self.residual.start(x_BTD)
        for index in range(len(self.sublayers) // 2):
            if self.recompute:
                stream = checkpoint(self.layer, stream, index, use_reentrant=False)
            else:
                stream = self.layer(stream, index)
        self.leaves = [id(t) for t in torch.utils._pytree.tree_leaves(stream)]
        return self.residual.finish(stream)


def randomised(residual: Residual) -> Residual:
    generator = torch.Generator().manual_seed(1)
    for name, p in residual.named_parameters():
        if "query" in name:
            p.data = torch.randn(p.shape, generator=generator)
    return residual


@every_topology
def test_checkpointing_changes_no_bit(name: str) -> None:
    results = []
    for recompute in (False, True):
        model = Depth(randomised(BUILD[name](10, 16)), recompute)
        x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(2)).requires_grad_()
        out = model(x)
        length = len(model.leaves)
        out.square().mean().backward()
        grads = {n: p.grad for n, p in model.named_parameters()} | {"x": x.grad, "out": out.detach()}
        assert all(g is not None for g in grads.values())
        assert len(model.leaves) == length
        results.append((grads, length))
    (plain, length), (recomputed, recomputed_length) = results
    assert length == recomputed_length
    for key, value in plain.items():
        assert torch.equal(value, recomputed[key]), key


@every_topology
def test_gradients_in_fp64(name: str) -> None:
    model = Depth(randomised(BUILD[name](6, 4))).double()
    x = torch.randn(1, 2, 4, dtype=torch.float64, requires_grad=True)
    parameters = list(model.residual.parameters())

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        return model(x)

    assert torch.autograd.gradcheck(run, (x, *parameters), atol=1e-6)


def saved_bytes(model: nn.Module, x: Tensor) -> int:
    """Bytes of the distinct storages that the forward pass keeps for the backward pass, parameters aside."""
    kept: dict[int, Tensor] = {}
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(t: Tensor) -> Tensor:
        pointer = t.untyped_storage().data_ptr()
        if pointer not in own:
            kept[pointer] = t
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        model(x)
    return sum(t.untyped_storage().nbytes() for t in kept.values())


@every_topology
def test_memory_grows_linearly_with_depth(name: str) -> None:
    x = torch.randn(1, 128, 256)
    by_depth = [saved_bytes(Depth(BUILD[name](sublayers, 256)), x) for sublayers in (8, 16, 32)]
    first, second = by_depth[1] - by_depth[0], by_depth[2] - by_depth[1]
    # Weights of the mixes are [N,T] scalars and do grow with the square: 1/256 of a source each.
    assert second <= 2.2 * first, by_depth


@pytest.mark.parametrize("name", ["full_attnres", "block_attnres"])
def test_attention_over_depth_saves_little_more_than_prenorm(name: str) -> None:
    x = torch.randn(1, 128, 256)
    plain = saved_bytes(Depth(BUILD["prenorm"](16, 256)), x)
    assert saved_bytes(Depth(BUILD[name](16, 256)), x) <= 1.15 * plain


@every_topology
def test_streams_are_immutable(name: str) -> None:
    residual = BUILD[name](4, 8)
    stream = residual.start(torch.randn(1, 2, 8))
    for i in range(4):
        before = [t.clone() for t in torch.utils._pytree.tree_leaves(stream) if t is not None]
        after = residual.write(stream, i, residual.read(stream, i))
        assert after is not stream
        left = [t for t in torch.utils._pytree.tree_leaves(stream) if t is not None]
        assert all(torch.equal(a, b) for a, b in zip(before, left, strict=True))
        stream = after


@every_topology
def test_dtype_of_the_stream_is_the_embedding_s(name: str) -> None:
    residual = BUILD[name](4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        stream = residual.start(torch.randn(1, 2, 8))
        for i in range(4):
            assert residual.read(stream, i).dtype == torch.float32
            stream = residual.write(stream, i, torch.randn(1, 2, 8).bfloat16())
        assert all(t.dtype == torch.float32 for t in torch.utils._pytree.tree_leaves(stream) if t is not None)
        assert residual.finish(stream).dtype == torch.float32


@every_topology
def test_nothing_but_vectors_and_no_query_that_is_never_used(name: str) -> None:
    residual = BUILD[name](6, 8)
    parameters = dict(residual.named_parameters())
    assert all(p.ndim == 1 for p in parameters.values())  # so that no weight decay reaches them
    queries = [n for n in parameters if n.endswith("query")]
    assert len(queries) == (0 if name == "prenorm" else 6)
    model = Depth(residual)
    model(torch.randn(1, 3, 8)).sin().sum().backward()
    # with zero queries the key norm has no gradient yet, but every query has one
    assert all(parameters[n].grad.abs().max() > 0 for n in queries)


@every_topology
def test_a_decoder_layer_compiles_without_a_break(name: str) -> None:
    model = Depth(randomised(BUILD[name](6, 8)))
    stream = model.layer(model.residual.start(torch.randn(1, 4, 8)), 0)
    torch.compiler.reset()
    compiled = torch.compile(model.layer, backend="aot_eager", fullgraph=True)
    expected, found = model.layer(stream, 1), compiled(stream, 1)
    leaves = torch.utils._pytree.tree_leaves
    for a, b in zip(leaves(expected), leaves(found), strict=True):
        assert (a is None and b is None) or torch.allclose(a, b, atol=1e-6)
    torch.compiler.reset()
