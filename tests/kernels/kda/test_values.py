"""KDA values and gradients: by hand, and against the recurrence in float64."""

from __future__ import annotations

import math

import pytest
import torch

from k3lab_kernels.kda import chunk_kda, fused_recurrent_kda, naive_recurrent_kda
from k3lab_kernels.kda.tiles import chunk_decays, decayed_products_backward

ALL = [naive_recurrent_kda, fused_recurrent_kda, chunk_kda]
FAST = [fused_recurrent_kda, chunk_kda]
LENGTHS = [1, 2, 15, 16, 17, 63, 64, 65, 79, 130]


def leaf(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype).requires_grad_()


# By hand


@pytest.mark.parametrize("f", ALL)
def test_without_writing_the_state_only_decays(f):
    """g = −1, k = 0: every step multiplies by e⁻¹ (not 2⁻¹), and o = scale·qᵀS."""
    T, K, V = 5, 3, 2
    q, h0 = torch.randn(1, T, 1, K), torch.randn(1, 1, K, V)
    k, v, g, beta = torch.zeros(1, T, 1, K), torch.randn(1, T, 1, V), -torch.ones(1, T, 1, K), torch.ones(1, T, 1)
    o, state = f(q, k, v, g, beta, initial_state=h0, output_final_state=True)
    torch.testing.assert_close(state, h0 * math.exp(-T))
    for t in range(T):
        torch.testing.assert_close(o[0, t, 0], K**-0.5 * q[0, t, 0] @ h0[0, 0] * math.exp(-t - 1))


@pytest.mark.parametrize("f", ALL)
def test_two_tokens_of_the_delta_rule(f):
    """K = V = 1, S0 = 2: decay first, then the correction towards v."""
    q, k, v, beta = (torch.tensor(x).view(1, 2, 1, 1) for x in ([1.0, 1.0], [1.0, 0.5], [3.0, -1.0], [0.5, 1.0]))
    g = torch.tensor([0.5, 0.25]).log().view(1, 2, 1, 1)
    o, state = f(q, k, v, g, beta[..., 0], initial_state=torch.full((1, 1, 1, 1), 2.0), output_final_state=True)
    first = 1.0 + 0.5 * (3.0 - 1.0)
    second = first / 4 + 0.5 * (-1.0 - first / 8)
    torch.testing.assert_close(o.flatten(), torch.tensor([first, second]))
    assert state.item() == pytest.approx(second)


@pytest.mark.parametrize("f", ALL)
@pytest.mark.parametrize("bound", [-5.0, -1.0, -10.0])
def test_bounded_gate_without_A_is_half_the_bound_at_zero(f, bound):
    """No A_log, z = 0: the log decay is bound/2, so k = 0 leaves e^(T·bound/2) of the state."""
    z = torch.zeros(1, 1, 1, 2)
    x = (torch.randn(1, 1, 1, 2), torch.zeros(1, 1, 1, 2), torch.randn(1, 1, 1, 2), z, torch.ones(1, 1, 1))
    h0 = torch.ones(1, 1, 2, 2)
    _, state = f(*x, initial_state=h0, output_final_state=True, use_gate_in_kernel=True, lower_bound=bound)
    torch.testing.assert_close(state, h0 * math.exp(bound / 2))


@pytest.mark.parametrize("f", ALL)
def test_softplus_gate_by_hand(f):
    A_log, bias = torch.tensor([0.3]), torch.tensor([0.1, -40.0])
    x = (torch.randn(1, 1, 1, 2), torch.zeros(1, 1, 1, 2), torch.randn(1, 1, 1, 2), torch.ones(1, 1, 1, 2))
    h0 = torch.ones(1, 1, 2, 1).expand(1, 1, 2, 2).contiguous()
    options = {"use_gate_in_kernel": True, "A_log": A_log, "dt_bias": bias}
    _, state = f(*x, torch.ones(1, 1, 1), initial_state=h0, output_final_state=True, **options)
    want = [math.exp(-math.exp(0.3) * math.log1p(math.exp(1 + b))) for b in (0.1, -40.0)]
    torch.testing.assert_close(state[0, 0, :, 0], torch.tensor(want))


@pytest.mark.parametrize("f", ALL)
def test_beta_zero_reads_the_decayed_state(f, kda_inputs):
    q, k, v, g, beta = (x.detach() for x in kda_inputs(70, ready=(-1, 0)))
    h0 = torch.randn(1, 2, 16, 8, dtype=torch.float64)
    o, state = f(q, k, v, g, beta * 0, initial_state=h0, output_final_state=True, scale=0.5)
    total = g.cumsum(1).exp()
    torch.testing.assert_close(state, h0 * total[:, -1].unsqueeze(-1))
    torch.testing.assert_close(o, 0.5 * torch.einsum("bthk,bhkv->bthv", q * total, h0))


# Against the recurrence

GATES = {
    "ready": {},
    "bounded": {"use_gate_in_kernel": True, "lower_bound": -5.0},
    "bounded_wide": {"use_gate_in_kernel": True, "lower_bound": -10.0},
    "softplus": {"use_gate_in_kernel": True},
}


@pytest.mark.parametrize("f", FAST)
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("T", LENGTHS)
def test_every_length_and_gate_in_float64(f, gate, T, kda_inputs, run_kda, error):
    options = dict(GATES[gate])
    inputs = kda_inputs(T, B=2, H=1, HV=2, K=5, V=3, ready=None if options else (-6, 0))
    if options:
        options |= {"A_log": leaf(2), "dt_bias": leaf(10)}
    h0 = leaf(2, 2, 5, 3)
    want = run_kda(naive_recurrent_kda, inputs, h0, **options)
    got = run_kda(f, inputs, h0, **options)
    assert len(got) == len(want) == (10 if "A_log" in options else 8)
    assert max(error(a, b) for a, b in zip(got, want, strict=True)) < 1e-11


@pytest.mark.parametrize("f", FAST)
@pytest.mark.parametrize(
    "options",
    [
        {"chunk_size": 32},
        {"disable_recompute": True},
        {"disable_recompute": True, "chunk_size": 32, "state_v_first": True},
        {"allow_neg_eigval": True, "scale": -0.3},
        {"use_qk_l2norm_in_kernel": False, "use_beta_sigmoid_in_kernel": False, "scale": 1.0},
        {"safe_gate": True, "lower_bound": -5.0},
        {"use_gate_in_kernel": True, "lower_bound": -0.7},
        {"use_gate_in_kernel": True, "lower_bound": -5.0, "safe_gate": True},
    ],
)
def test_every_option(f, options, kda_inputs, run_kda, error):
    """K ≠ V with an asymmetric state; T=160 crosses chunks of both sizes."""
    inputs = kda_inputs(160, K=7, V=12, ready=(-5, 0))
    if options.get("use_qk_l2norm_in_kernel") is False:
        inputs[0], inputs[1] = ((x.detach() / 4).requires_grad_() for x in inputs[:2])
        inputs[4] = torch.rand_like(inputs[4]).requires_grad_()
    h0 = leaf(1, 2, *((12, 7) if options.get("state_v_first") else (7, 12)))
    want, got = (run_kda(x, inputs, h0, **options) for x in (naive_recurrent_kda, f))
    assert max(error(a, b) for a, b in zip(got, want, strict=True)) < 1e-11


@pytest.mark.parametrize("f", FAST)
@pytest.mark.parametrize("K,V", [(1, 1), (1, 9), (60, 100), (100, 60), (128, 3)])
def test_any_width(f, K, V, kda_inputs, run_kda, error):
    inputs = kda_inputs(70, H=1, K=K, V=V, ready=(-3, 0))
    want, got = (run_kda(x, inputs) for x in (naive_recurrent_kda, f))
    assert max(error(a, b) for a, b in zip(got, want, strict=True)) < 1e-11


def test_grouped_value_heads_equal_repeated_heads(kda_inputs, run_kda, error):
    inputs = kda_inputs(20, H=1, HV=2)
    repeated = [x.detach().repeat_interleave(2, 2).requires_grad_() for x in inputs[:2]] + inputs[2:]
    options = {"use_gate_in_kernel": True, "lower_bound": -5.0}
    got, want = run_kda(chunk_kda, inputs, **options), run_kda(chunk_kda, repeated, **options)
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])
    assert error(got[2], want[2].sum(2, keepdim=True)) < 1e-14
    assert error(got[3], want[3].sum(2, keepdim=True)) < 1e-14


# Gates at their extremes


@pytest.mark.parametrize("value", [-5.0, -3.0])
def test_constant_strong_gates_in_fp32(value, kda_inputs, run_kda, error):
    """One anchor for a whole chunk would overflow; T=64 and 4096."""
    for T in (64, 4096):
        inputs = kda_inputs(T, H=1, K=8, V=8)
        inputs[3] = torch.full_like(inputs[3], 100.0 if value == -5.0 else math.log(1.5)).requires_grad_()
        options = {"use_gate_in_kernel": True, "lower_bound": -5.0}
        single = [x.detach().float().requires_grad_() for x in inputs]
        want = run_kda(fused_recurrent_kda, inputs, **options)
        got = run_kda(chunk_kda, single, **options)
        assert all(x.isfinite().all() for x in got)
        assert max(error(a, b) for a, b in zip(got[:5], want[:5], strict=True)) < 1e-5


@pytest.mark.parametrize("low", [-6.0, -30.0, -1000.0])
def test_gates_without_a_bound(low, kda_inputs, run_kda, error):
    inputs = kda_inputs(100, ready=(low, 0))
    inputs[3] = torch.where(torch.rand_like(inputs[3]) < 0.2, inputs[3], inputs[3] / 1000).detach().requires_grad_()
    want = run_kda(naive_recurrent_kda, inputs)
    single = [x.detach().float().requires_grad_() for x in inputs]
    for options in ({}, {"safe_gate": True}, {"lower_bound": -5.0, "safe_gate": True}):
        got = run_kda(chunk_kda, single, **options)
        assert max(error(a, b) for a, b in zip(got, want, strict=True)) < 2e-6


def test_constant_gate_of_minus_six_without_a_bound(kda_inputs, run_kda, error):
    inputs = kda_inputs(16, ready=(-6, -6))
    want, got = (run_kda(f, inputs) for f in (naive_recurrent_kda, chunk_kda))
    assert max(error(a, b) for a, b in zip(got, want, strict=True)) < 1e-12


@pytest.mark.parametrize("bound", [-5.0, -5.5, -5.6, -10.0, None])
def test_saturated_raw_gates_in_fp32(bound, kda_inputs, run_kda, error):
    inputs = kda_inputs(80)
    inputs[3] = (inputs[3].detach() * 50).requires_grad_()
    options = {"use_gate_in_kernel": True, "lower_bound": bound, "A_log": leaf(2)}
    want = run_kda(naive_recurrent_kda, inputs, **options)
    single = [x.detach().float().requires_grad_() for x in inputs]
    options["A_log"] = options["A_log"].detach().float().requires_grad_()
    got = run_kda(chunk_kda, single, **options)
    assert max(error(a, b) for a, b in zip(got, want, strict=True)) < 1e-5


@pytest.mark.parametrize("f", ALL)
def test_own_decay_of_the_first_token_has_no_gradient(f, kda_inputs, run_kda):
    for options in ({}, {"use_gate_in_kernel": True, "lower_bound": -5.0}):
        got = run_kda(f, kda_inputs(1, ready=(-1, 0)), **options)
        assert torch.count_nonzero(got[5]) == 0
    inputs = kda_inputs(90, ready=(-1, 0))
    o, _ = f(*inputs)
    d_g = torch.autograd.grad(o.square().sum(), inputs[3])[0]
    assert torch.count_nonzero(d_g[:, 0]) == 0


@pytest.mark.parametrize("f", ALL)
def test_keys_of_zero_have_finite_gradients(f, kda_inputs, run_kda):
    inputs = kda_inputs(10, ready=(-1, 0))
    inputs[1] = torch.zeros_like(inputs[1]).requires_grad_()
    assert all(x.isfinite().all() for x in run_kda(f, inputs))


def test_absent_parameters_get_no_gradient(kda_inputs):
    inputs = kda_inputs(5)
    o, state = chunk_kda(*inputs, use_gate_in_kernel=True, lower_bound=-5.0)
    assert state is None
    o.sum().backward()
    assert all(x.grad is not None for x in inputs)


def test_gradcheck(kda_inputs):
    inputs = kda_inputs(6, H=1, HV=2, K=3, V=2)
    extra = [leaf(1, 2, 3, 2), leaf(2), leaf(6)]

    def call(q, k, v, g, beta, h0, A_log, dt_bias, bound):
        return chunk_kda(
            q, k, v, g, beta, initial_state=h0, output_final_state=True, use_qk_l2norm_in_kernel=True,
            use_beta_sigmoid_in_kernel=True, use_gate_in_kernel=True, lower_bound=bound, A_log=A_log, dt_bias=dt_bias,
        )  # fmt: skip

    for bound in (-5.0, None):
        assert torch.autograd.gradcheck(lambda *x, bound=bound: call(*x, bound), (*inputs, *extra))


# Dtypes


@pytest.mark.parametrize("dtype,limits", [(torch.float32, (2e-6, 5e-6)), (torch.bfloat16, (5e-3, 2e-2))])
def test_low_precision_inputs(dtype, limits, kda_inputs, run_kda, error):
    """fp32 g and β beside bf16 q, k, v; gradients come in the dtypes of their inputs."""
    inputs = [x.detach().to(dtype).requires_grad_() for x in kda_inputs(150)]
    inputs[3:] = [x.detach().float().requires_grad_() for x in inputs[3:]]
    options = {"use_gate_in_kernel": True, "lower_bound": -5.0}
    want = run_kda(naive_recurrent_kda, [x.detach().double().requires_grad_() for x in inputs], **options)
    got = run_kda(chunk_kda, inputs, **options)
    assert got[0].dtype == dtype
    assert got[1].dtype == torch.float32
    assert [x.dtype for x in got[2:]] == [x.dtype for x in inputs]
    errors = [error(a, b) for a, b in zip(got, want, strict=True)]
    assert max(errors[:2]) < limits[0]
    assert max(errors[2:]) < limits[1]


def test_bf16_initial_state_gets_a_bf16_gradient(kda_inputs, run_kda):
    h0 = leaf(1, 2, 16, 8, dtype=torch.bfloat16)
    got = run_kda(chunk_kda, kda_inputs(20, dtype=torch.float32), h0)
    assert got[1].dtype == torch.float32
    assert got[7].dtype == torch.bfloat16


@pytest.mark.parametrize("tile", [1, 8, 16])
def test_suffix_sums_of_gate_gradients_are_added_never_subtracted(tile):
    """Rows of 1e8 before rows of 1: the suffix sums over the ones stay exact (a difference of totals gives 0)."""
    x = torch.zeros(1, 64, 1)
    rows = torch.tensor([1e8] * 32 + [1.0] * 32).view(1, 64, 1)
    squares = torch.zeros(1, 64, 64)
    d_g = decayed_products_backward(squares, squares, x, x, chunk_decays(x, tile), tile, rows, torch.zeros_like(x))[2]
    assert d_g[0, 32:, 0].tolist() == list(range(32, 0, -1))
    assert d_g[0, 31, 0].item() == pytest.approx(1e8)
