"""Attention over depth: values by hand and against autograd in float64, memory, determinism, mistakes."""

from __future__ import annotations

import math

import pytest
import torch

from k3lab_kernels.attnres import attnres_inter, attnres_merge, fused_attnres, naive_attnres


def leaf(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype).requires_grad_()


@pytest.mark.parametrize("f", [naive_attnres, fused_attnres])
def test_by_hand(f):
    """D=2, sources (3,4) and (1,0): unit rows (0.6,0.8)·√2 and (1,0)·√2, query on the first axis."""
    sources = [torch.tensor([3.0, 4.0]), torch.tensor([1.0, 0.0])]
    o, p = f(torch.tensor([1.0, 0.0]), sources, torch.tensor([2.0, 1.0]), rms_eps=0.0, scale=0.5, return_weights=True)
    logits = [0.5 * 2 * 0.6 * math.sqrt(2), 0.5 * 2 * math.sqrt(2)]
    share = 1 / (1 + math.exp(logits[1] - logits[0]))
    torch.testing.assert_close(p, torch.tensor([share, 1 - share]))
    torch.testing.assert_close(o, torch.tensor([3 * share + (1 - share), 4 * share]))


@pytest.mark.parametrize("L", [1, 2, 5, 9])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("stacked", [False, True])
def test_against_autograd_in_float64(L, normed, stacked, error):
    query, weight, out_weight = leaf(13), leaf(13), leaf(13) if normed else None
    residuals = leaf(L, 2, 3, 13) if stacked else [leaf(2, 3, 13) for _ in range(L)]
    inputs = [query, weight, *([residuals] if stacked else residuals), *([out_weight] if normed else [])]
    options = {"rms_eps": 1e-3, "scale": 0.7, "return_weights": True}
    want, got = (f(query, residuals, weight, out_weight, **options) for f in (naive_attnres, fused_attnres))
    assert got[1].shape == (L, 2, 3)
    cotangents = [torch.randn_like(x) for x in want]
    for index in ((0,), (0, 1)):  # the mix alone, and with its weights
        a, b = (
            torch.autograd.grad([r[i] for i in index], inputs, [cotangents[i] for i in index], retain_graph=True)
            for r in (want, got)
        )
        assert max(error(x, y) for x, y in zip(b, a, strict=True) if y.norm() > 1e-12) < 1e-11
        assert all(x.norm() < 1e-12 for x, y in zip(b, a, strict=True) if y.norm() <= 1e-12)
    assert max(error(x, y) for x, y in zip(got, want, strict=True)) < 1e-13


def test_gradcheck():
    def call(query, weight, out_weight, *sources):
        return fused_attnres(query, sources, weight, out_weight, 1e-2, 0.9, True)

    assert torch.autograd.gradcheck(call, [leaf(4), leaf(4), leaf(4), *(leaf(2, 4) for _ in range(3))])


def test_zero_query_averages_the_sources():
    sources = [torch.randn(5, 8) for _ in range(4)]
    o, p = fused_attnres(torch.zeros(8), sources, torch.ones(8), return_weights=True)
    assert torch.equal(p, torch.full((4, 5), 0.25))
    torch.testing.assert_close(o, torch.stack(sources).mean(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_source_keeps_its_bits_in_a_new_tensor(dtype):
    source = torch.randn(3, 7).to(dtype).requires_grad_()
    query, weight = leaf(7, dtype=torch.float32), leaf(7, dtype=torch.float32)
    o = fused_attnres(query, [source], weight)
    assert torch.equal(o, source)
    assert o.data_ptr() != source.data_ptr()
    d_o = torch.randn_like(o)
    grads = torch.autograd.grad(o, [source, query, weight], d_o)
    assert torch.equal(grads[0], d_o)
    assert torch.count_nonzero(grads[1]) == torch.count_nonzero(grads[2]) == 0


def test_one_source_with_the_output_norm_is_the_plain_norm():
    source, weight = torch.randn(3, 7), torch.randn(7)
    o = fused_attnres(torch.randn(7), [source], torch.randn(7), weight, rms_eps=1e-5)
    assert torch.equal(o, torch.nn.functional.rms_norm(source, (7,), weight, 1e-5))


def test_bf16_is_summed_in_fp32(error):
    """600 tokens with a gradient of 1 each: their sum is 600 (a bf16 sum sticks at 256)."""
    source, weight = torch.ones(600, 4, dtype=torch.bfloat16), torch.ones(4, requires_grad=True)
    o = fused_attnres(torch.zeros(4), [source], torch.ones(4), weight, rms_eps=0.0)
    o.backward(torch.ones_like(o))
    assert weight.grad.tolist() == [600.0] * 4

    query, key_weight = leaf(16, dtype=torch.float32), leaf(16, dtype=torch.float32)
    sources = [torch.randn(40, 16).bfloat16().requires_grad_() for _ in range(5)]
    o = fused_attnres(query, sources, key_weight)
    assert o.dtype == torch.bfloat16
    d_o = torch.randn_like(o)
    got = torch.autograd.grad(o, [query, key_weight, *sources], d_o)
    wide = [x.detach().double().requires_grad_() for x in (query, key_weight, *sources)]
    exact = naive_attnres(wide[0], wide[2:], wide[1])
    want = torch.autograd.grad(exact, wide, d_o.double())
    assert error(o, exact) < 3e-3
    assert [x.dtype for x in got] == [torch.float32] * 2 + [torch.bfloat16] * 5
    assert max(error(a, b) for a, b in zip(got[:2], want[:2], strict=True)) < 1e-5
    assert max(error(a, b) for a, b in zip(got[2:], want[2:], strict=True)) < 3e-3


@pytest.mark.parametrize("S,n", [(1, 1), (3, 1), (4, 5)])
def test_two_phases_equal_one_pass(S, n, error):
    queries, weights, partial = leaf(S, 9), leaf(S, 9), leaf(2, 3, 9)
    blocks = [leaf(2, 3, 9) for _ in range(n)]
    inputs = [queries, weights, partial, *blocks]
    mixes, lse = attnres_inter(queries, weights, blocks, 1e-3)
    assert len(mixes) == S
    assert lse.shape == (S, 2, 3)
    got = [attnres_merge(queries[s], weights[s], partial, mixes[s], lse[s], 1e-3) for s in range(S)]
    want = [naive_attnres(queries[s], [*blocks, partial], weights[s], rms_eps=1e-3) for s in range(S)]
    inter = [naive_attnres(queries[s], blocks, weights[s], rms_eps=1e-3) for s in range(S)]
    cotangents = [torch.randn_like(x) for x in want]
    a, b = (torch.autograd.grad(r, inputs, cotangents, retain_graph=True) for r in (want, got))
    assert max(error(x, y) for x, y in zip([*got, *mixes, *b], [*want, *inter, *a], strict=True)) < 1e-12


def test_two_phases_in_low_precision():
    queries, weights = torch.randn(2, 64), torch.randn(2, 64)
    blocks, partial = [torch.randn(5, 64).bfloat16() for _ in range(3)], torch.randn(5, 64).bfloat16()
    mixes, lse = attnres_inter(queries, weights, blocks)
    assert lse.dtype == torch.float32
    for s in range(2):
        merged = attnres_merge(queries[s], weights[s], partial, mixes[s], lse[s])
        assert merged.dtype == torch.bfloat16
        want = naive_attnres(queries[s], [*blocks, partial], weights[s])
        torch.testing.assert_close(merged, want, rtol=0.02, atol=0.02)


def test_extreme_logits_do_not_overflow():
    sources = [torch.randn(3, 8), torch.randn(3, 8)]
    query = torch.full((8,), 1e4, requires_grad=True)
    o = fused_attnres(query, sources, torch.ones(8))
    o.sum().backward()
    assert o.isfinite().all()
    assert query.grad.isfinite().all()
    mixes, lse = attnres_inter(query.detach()[None], torch.ones(1, 8), sources[:1])
    torch.testing.assert_close(attnres_merge(query, torch.ones(8), sources[1], mixes[0], lse[0]), o)


def saved(f):
    """Tensors that `f` hands to autograd for its backward pass."""
    tensors = []

    def pack(x):
        tensors.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        f()
    return tensors


def test_memory_kept_for_backward_grows_linearly_with_depth():
    """T=128, D=256, 24 sublayers, each mixing all before it: beyond the sources themselves, [L, T] numbers."""
    T, D, depth = 128, 256, 24
    stream, sizes = [leaf(T, D, dtype=torch.float32)], []
    queries, weight = leaf(depth, D, dtype=torch.float32), leaf(D, dtype=torch.float32)
    for i in range(depth):
        own = {x.data_ptr() for x in stream}
        mixed: list[torch.Tensor] = []
        tensors = saved(lambda i=i, mixed=mixed: mixed.append(fused_attnres(queries[i], stream, weight)))
        seen = {x.data_ptr() for x in tensors}
        assert own <= seen  # offload and checkpoint hooks see every source
        sizes.append(sum(x.numel() for x in tensors if x.data_ptr() not in own and x.numel() > D))
        stream.append(mixed[0])
    assert all(size <= 2 * (i + 1) * T for i, size in enumerate(sizes))


def test_checkpointing_gives_the_same_bits_and_leaves_the_sources_alone():
    sources, query, weight = [leaf(9, 16, dtype=torch.float32) for _ in range(4)], leaf(16), leaf(16)
    copies = [x.detach().clone() for x in sources]
    plain = torch.autograd.grad(fused_attnres(query, sources, weight).square().sum(), [query, weight, *sources])
    again = torch.utils.checkpoint.checkpoint(fused_attnres, query, sources, weight, use_reentrant=False)
    grads = torch.autograd.grad(again.square().sum(), [query, weight, *sources])
    assert all(torch.equal(a, b) for a, b in zip(grads, plain, strict=True))
    assert len(sources) == 4
    assert all(torch.equal(a, b) for a, b in zip(sources, copies, strict=True))


def test_repeats_autocast_and_strides_keep_the_bits():
    sources, query, weight = [leaf(6, 5, 16, dtype=torch.float32) for _ in range(3)], leaf(16), leaf(16)

    def grads(residuals, inside=False):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            o = fused_attnres(query, residuals, weight)
            return [o, *torch.autograd.grad(o.square().sum(), [query, weight, *sources])]

    want = grads(sources)
    strided = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in sources]
    for got in (grads(sources), grads(sources, inside=True), grads(strided)):
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_compiles_whole_at_every_depth():
    query, weight = leaf(16, dtype=torch.float32), leaf(16, dtype=torch.float32)
    sources = [leaf(4, 16, dtype=torch.float32) for _ in range(3)]

    def depths(query, weight, *sources):
        stream = list(sources)
        for _ in range(3):
            stream.append(fused_attnres(query, stream, weight))
        return stream[-1]

    compiled = torch.compile(depths, fullgraph=True, backend="aot_eager")
    for f in (depths, compiled):
        grads = torch.autograd.grad(f(query, weight, *sources).sum(), [query, *sources])
        if f is depths:
            want = grads
    assert all(torch.equal(a, b) for a, b in zip(grads, want, strict=True))


@pytest.mark.parametrize("L", [1, 2, 3])
@pytest.mark.parametrize("grad", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_compiles_whole_where_nothing_needs_a_gradient(L, grad):
    """Then Dynamo calls a Function's forward itself, and guesses from the number of arguments whether it takes ctx."""
    query, weight, *sources = torch.randn(2 + L, 16).unbind(0)

    def both(query, weight, *sources):
        (inter,), lse = attnres_inter(query[None], weight[None], sources)
        return fused_attnres(query, sources, weight, weight), attnres_merge(query, weight, sources[0], inter, lse[0])

    torch._dynamo.reset()
    with grad():
        compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
        for a, b in zip(compiled(query, weight, *sources), both(query, weight, *sources), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("f", [naive_attnres, fused_attnres])
@pytest.mark.parametrize(
    "change,name",
    [
        ({"residuals": []}, "residuals"),
        ({"residuals": [torch.zeros(3, 4), torch.zeros(2, 4)]}, "residuals"),
        ({"residuals": [torch.zeros(3, 4), torch.zeros(3, 4).half()]}, "residuals"),
        ({"residuals": [torch.zeros(3, 4, dtype=torch.int64)]}, "residuals"),
        ({"residuals": [1.0]}, "residuals"),
        ({"residuals": torch.zeros(4)}, "residuals"),
        ({"residuals": 3}, "residuals"),
        ({"query": torch.zeros(5)}, "query"),
        ({"query": None}, "query"),
        ({"rms_weight": torch.zeros(1, 4)}, "rms_weight"),
        ({"rms_weight": torch.zeros(4, dtype=torch.int32)}, "rms_weight"),
        ({"output_rms_weight": torch.zeros(3)}, "output_rms_weight"),
        ({"rms_eps": -1.0}, "rms_eps"),
        ({"scale": float("nan")}, "scale"),
        ({"scale": "1"}, "scale"),
    ],
)
def test_mistakes_name_the_argument(f, change, name):
    arguments = {"query": torch.zeros(4), "residuals": [torch.zeros(3, 4)] * 2, "rms_weight": torch.ones(4), **change}
    with pytest.raises((ValueError, TypeError), match=f"^{name}(=[^:]*)?: "):
        f(**arguments)


@pytest.mark.parametrize(
    "change,name",
    [
        ({"inter": torch.zeros(2, 4)}, "inter"),
        ({"inter": torch.zeros(3, 4).half()}, "inter"),
        ({"lse": torch.zeros(3, 1)}, "lse"),
        ({"lse": torch.zeros(3).half()}, "lse"),
        ({"query": torch.zeros(1, 4)}, "query"),
        ({"partial": None}, "partial"),
    ],
)
def test_mistakes_of_merge_name_the_argument(change, name):
    arguments = {"query": torch.zeros(4), "rms_weight": torch.ones(4), "partial": torch.zeros(3, 4)}
    arguments |= {"inter": torch.zeros(3, 4), "lse": torch.zeros(3), **change}
    with pytest.raises((ValueError, TypeError), match=f"^{name}: "):
        attnres_merge(**arguments)


@pytest.mark.parametrize(
    "queries,weights,name",
    [
        (torch.zeros(4), torch.zeros(1, 4), "queries"),
        (torch.zeros(0, 4), torch.zeros(0, 4), "queries"),
        (torch.zeros(2, 4), torch.zeros(1, 4), "rms_weights"),
    ],
)
def test_mistakes_of_inter_name_the_argument(queries, weights, name):
    with pytest.raises(ValueError, match=f"^{name}: "):
        attnres_inter(queries, weights, [torch.zeros(3, 4)])
