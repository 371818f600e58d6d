"""Bits that must not depend on what comes later, what lies beside, how often, or in which layout."""

from __future__ import annotations

import pytest
import torch

from k3lab_kernels.kda import chunk_kda, fused_recurrent_kda, naive_recurrent_kda

RAW = {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "use_gate_in_kernel": True}
LENGTHS = [5, 0, 64, 1, 130, 0, 17, 2]


def prefix_bits(inputs, length, options):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    o = chunk_kda(*inputs, **options)[0][:, :length]
    return [o, *(g[:, :length] for g in torch.autograd.grad(o.square().sum(), inputs))]


@pytest.mark.parametrize("bound", [-5.0, -10.0, None])
def test_future_rows_never_touch_the_prefix(bound, kda_inputs):
    """Another last row, or no last row: outputs and gradients of a prefix loss keep their bits, T = 17..80."""
    options = {**RAW, "lower_bound": bound, "A_log": torch.zeros(2)}
    for T in range(17, 81):
        x = [t.detach() for t in kda_inputs(T, dtype=torch.float32)]
        changed = [torch.cat((t[:, :-1], 3 * torch.randn_like(t[:, -1:])), 1) for t in x]
        want = prefix_bits(x, T - 1, options)
        for other in (changed, [t[:, :-1] for t in x]):
            assert all(torch.equal(a, b) for a, b in zip(prefix_bits(other, T - 1, options), want, strict=True)), T


def test_only_the_last_gate_changes(kda_inputs):
    x = [t.detach() for t in kda_inputs(22, dtype=torch.float32)]
    options = {**RAW, "lower_bound": -5.0}
    want = prefix_bits(x, 21, options)
    x[3] = x[3].clone()
    x[3][:, 21] = 9.0
    assert all(torch.equal(a, b) for a, b in zip(prefix_bits(x, 21, options), want, strict=True))


def offsets(lengths, dtype=torch.int64):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=dtype)


@pytest.mark.parametrize("f", [chunk_kda, fused_recurrent_kda])
@pytest.mark.parametrize("bound", [-5.0, None])
@pytest.mark.parametrize("H,K,V", [(2, 16, 8), (1, 60, 20)])
def test_packed_equals_alone_bit_for_bit(f, bound, H, K, V, kda_inputs, run_kda):
    inputs = [x.detach().requires_grad_() for x in kda_inputs(sum(LENGTHS), H=H, K=K, V=V, dtype=torch.float32)]
    h0 = torch.randn(len(LENGTHS), H, K, V)
    cu = offsets(LENGTHS)
    options = {**RAW, "lower_bound": bound, "A_log": torch.zeros(H), "output_final_state": True}
    o, state = f(*inputs, initial_state=h0, cu_seqlens=cu, **options)
    weight = torch.randn_like(o)
    grads = torch.autograd.grad((o * weight).sum() + state.square().sum(), inputs)
    for n, (a, b) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)):
        if a == b:
            assert torch.equal(state[n], h0[n])
            continue
        alone = [x.detach()[:, a:b].clone().requires_grad_() for x in inputs]
        o_n, state_n = f(*alone, initial_state=h0[n : n + 1], **options)
        assert torch.equal(o_n, o[:, a:b])
        assert torch.equal(state_n[0], state[n])
        grads_n = torch.autograd.grad((o_n * weight[:, a:b]).sum() + state_n.square().sum(), alone)
        assert all(torch.equal(g_n, g[:, a:b]) for g_n, g in zip(grads_n, grads, strict=True))


@pytest.mark.parametrize("f", [chunk_kda, fused_recurrent_kda])
@pytest.mark.parametrize("lengths", [[0, 5, 0], [1, 1, 68], LENGTHS, [0, 0]])
@pytest.mark.parametrize("keep", [False, True])
def test_packed_against_the_recurrence(f, lengths, keep, kda_inputs, run_kda, error):
    inputs = kda_inputs(sum(lengths), H=1, HV=2, K=5, V=3, ready=(-2, 0))
    h0 = torch.randn(len(lengths), 2, 5, 3, dtype=torch.float64).requires_grad_()
    cu = offsets(lengths, torch.int32)
    if not sum(lengths):
        o, state = f(*inputs, initial_state=h0, output_final_state=True, cu_seqlens=cu)
        assert o.shape == (1, 0, 2, 3)
        assert torch.equal(state, h0)
        return
    options = {"cu_seqlens": cu, "cu_seqlens_cpu": cu.clone(), "disable_recompute": keep}
    want, got = (run_kda(x, inputs, h0, **options) for x in (naive_recurrent_kda, f))
    assert max(error(a, b) for a, b in zip(got, want, strict=True)) < 1e-12


@pytest.mark.parametrize("f", [chunk_kda, fused_recurrent_kda])
@pytest.mark.parametrize("v_first", [False, True])
def test_two_passes_with_the_state_carried(f, v_first, kda_inputs, error):
    """At a chunk boundary the same bits; elsewhere to fp32 rounding. An asymmetric state, K ≠ V."""
    x = [t.detach() for t in kda_inputs(200, B=2, dtype=torch.float32)]
    h0 = torch.randn(2, 2, 16, 8)
    h0 = h0.mT.contiguous() if v_first else h0
    options = {**RAW, "lower_bound": -5.0, "output_final_state": True, "state_v_first": v_first}
    o, state = f(*x, initial_state=h0, **options)
    for cut in (128, 100):
        o1, carried = f(*[t[:, :cut] for t in x], initial_state=h0, **options)
        o2, final = f(*[t[:, cut:] for t in x], initial_state=carried, **options)
        assert error(torch.cat((o1, o2), 1), o) < 1e-6
        assert error(final, state) < 1e-6
        if cut == 128:
            assert torch.equal(final, state)
            assert torch.equal(torch.cat((o1, o2), 1), o)


def test_decoding_token_by_token_equals_the_chunk_path(kda_inputs, error):
    x = [t.detach() for t in kda_inputs(70, B=2)]
    options = {**RAW, "lower_bound": -5.0, "output_final_state": True}
    o, state = chunk_kda(*x, **options)
    carried, outputs = None, []
    for t in range(70):
        o_t, carried = fused_recurrent_kda(*[s[:, t : t + 1] for s in x], initial_state=carried, **options)
        outputs.append(o_t)
    assert error(torch.cat(outputs, 1), o) < 1e-12
    assert error(carried, state) < 1e-12


@pytest.mark.parametrize("f", [chunk_kda, fused_recurrent_kda])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("chunk_size", [32, 64])
def test_intermediate_states(f, packed, chunk_size, kda_inputs, error):
    x = [t.detach() for t in kda_inputs(sum(LENGTHS), B=1 if packed else 2, K=5, V=3, ready=(-2, 0))]
    options = {"return_intermediate_states": True, "chunk_size": chunk_size, "state_v_first": packed}
    options |= {"cu_seqlens": offsets(LENGTHS)} if packed else {}
    got, want = f(*x, **options), naive_recurrent_kda(*x, **options)
    assert got[1] is None
    chunks = sum(-(-n // chunk_size) for n in ([sum(LENGTHS)] if not packed else LENGTHS))
    assert got[2].shape == (1 if packed else 2, chunks, 2, *((3, 5) if packed else (5, 3)))
    assert error(got[2], want[2]) < 1e-12


def test_twenty_runs_have_the_same_bits(kda_inputs, run_kda):
    inputs = kda_inputs(150, dtype=torch.float32)
    options = {**RAW, "lower_bound": -5.0, "A_log": torch.zeros(2).requires_grad_()}
    want = run_kda(chunk_kda, inputs, **options)
    for _ in range(19):
        assert all(torch.equal(a, b) for a, b in zip(run_kda(chunk_kda, inputs, **options), want, strict=True))


@pytest.mark.parametrize("T", [1, 2, 15, 16, 17, 63, 64, 65, 79])
def test_memory_around_the_inputs_never_leaks(T, kda_inputs, run_kda, error):
    """Inputs are windows into buffers full of NaN, so also not contiguous."""
    inputs = kda_inputs(T, B=2, ready=(-2, 0))
    windows = []
    for x in inputs:
        buffer = torch.full((2, T + 9, *x.shape[2:]), torch.nan, dtype=x.dtype)
        buffer[:, 4 : 4 + T] = x.detach()
        windows.append(buffer[:, 4 : 4 + T].requires_grad_())
    for f in (chunk_kda, fused_recurrent_kda):
        want, got = run_kda(naive_recurrent_kda, inputs), run_kda(f, windows)
        assert max(error(a, b) for a, b in zip(got, want, strict=True)) < 1e-12


@pytest.mark.parametrize("f", [chunk_kda, fused_recurrent_kda])
def test_inputs_are_left_alone(f, kda_inputs, run_kda):
    """Also where the layout could hand out views: one batch, one head, a whole chunk."""
    for ready in (None, (-1, 0)):
        inputs = kda_inputs(64, H=1, dtype=torch.float32, ready=ready)
        h0 = torch.randn(1, 1, 16, 8)
        copies = [x.detach().clone() for x in (*inputs, h0)]
        options = {} if ready else {"use_gate_in_kernel": True, "lower_bound": -5.0}
        plain = {"use_qk_l2norm_in_kernel": False, "use_beta_sigmoid_in_kernel": False}
        got = run_kda(f, inputs, h0, **options, **plain)
        assert all(torch.equal(a, b) for a, b in zip((*inputs, h0), copies, strict=True))
        assert all(a.data_ptr() != b.data_ptr() for a in got[:2] for b in (*inputs, h0))
