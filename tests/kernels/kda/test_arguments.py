"""Mistakes in calls of the KDA functions are refused by name; compile, autocast and op checks pass."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from k3lab_kernels.kda import chunk_kda, fused_recurrent_kda, naive_recurrent_kda

ALL = [naive_recurrent_kda, fused_recurrent_kda, chunk_kda]
GATE = {"use_gate_in_kernel": True}


@pytest.mark.parametrize("f", ALL)
@pytest.mark.parametrize(
    "change,options,name",
    [
        ({"q": lambda x: x[0]}, {}, "q"),
        ({"q": lambda x: x.double()}, {}, "q"),
        ({"q": lambda x: x.tolist()}, {}, "q"),
        ({"k": lambda x: x[:, :3]}, {}, "k"),
        ({"k": lambda x: x.half()}, {}, "k"),
        ({"v": lambda x: x[:, :, :1].expand(-1, -1, 3, -1)}, {}, "v"),
        ({"v": lambda x: x.long()}, {}, "v"),
        ({"g": lambda x: x[..., :1]}, {}, "g"),
        ({"g": lambda x: x.double()}, {}, "g"),
        ({"beta": lambda x: x.unsqueeze(-1)}, {}, "beta"),
        ({"beta": lambda x: x.bfloat16()}, {}, "beta"),
        ({}, {"scale": float("nan")}, "scale"),
        ({}, {"scale": "1"}, "scale"),
        ({}, {"scale": True}, "scale"),
        ({}, {"lower_bound": 0.0}, "lower_bound"),
        ({}, {"lower_bound": 5.0}, "lower_bound"),
        ({}, {"lower_bound": -10.5}, "lower_bound"),
        ({}, {"lower_bound": float("nan")}, "lower_bound"),
        ({}, {"lower_bound": -float("inf")}, "lower_bound"),
        ({}, {"lower_bound": True}, "lower_bound"),
        ({}, {"chunk_size": 16}, "chunk_size"),
        ({}, {"chunk_size": 64.0}, "chunk_size"),
        ({}, {"allow_neg_eigval": True}, "allow_neg_eigval"),
        ({}, GATE, "A_log"),
        ({}, {**GATE, "A_log": torch.zeros(3)}, "A_log"),
        ({}, {**GATE, "A_log": 1.0}, "A_log"),
        ({}, {**GATE, "lower_bound": -5.0, "dt_bias": torch.zeros(2)}, "dt_bias"),
        ({}, {"initial_state": torch.zeros(1, 2, 3, 4)}, "initial_state"),
        ({}, {"initial_state": torch.zeros(1, 2, 4, 3), "state_v_first": True}, "initial_state"),
        ({}, {"initial_state": torch.zeros(2, 2, 4, 3)}, "initial_state"),
        ({}, {"cu_seqlens": torch.tensor([0, 3])}, "cu_seqlens"),
        ({}, {"cu_seqlens": torch.tensor([1, 5])}, "cu_seqlens"),
        ({}, {"cu_seqlens": torch.tensor([0, 4, 3, 5])}, "cu_seqlens"),
        ({}, {"cu_seqlens": torch.tensor([0, 6])}, "cu_seqlens"),
        ({}, {"cu_seqlens": torch.tensor([0.0, 5.0])}, "cu_seqlens"),
        ({}, {"cu_seqlens": torch.tensor(0)}, "cu_seqlens"),
        ({}, {"cu_seqlens": [0, 5]}, "cu_seqlens"),
        ({}, {"cu_seqlens_cpu": torch.tensor([0, 5])}, "cu_seqlens_cpu"),
        ({}, {"cu_seqlens": torch.tensor([0, 2, 5]), "cu_seqlens_cpu": torch.tensor([0, 3, 5])}, "cu_seqlens_cpu"),
        ({}, {"cu_seqlens": torch.tensor([0, 2, 5]), "cu_seqlens_cpu": torch.tensor([0, 5])}, "cu_seqlens_cpu"),
    ],
)
def test_mistakes_name_the_argument(f, change, options, name):
    x = {"q": torch.randn(1, 5, 2, 4), "k": torch.randn(1, 5, 2, 4), "v": torch.randn(1, 5, 2, 3)}
    x |= {"g": -torch.rand(1, 5, 2, 4), "beta": torch.rand(1, 5, 2)}
    x |= {key: edit(x[key]) for key, edit in change.items()}
    with pytest.raises((ValueError, TypeError), match=f"^{name}: "):
        f(**x, **options)


@pytest.mark.parametrize("f", ALL)
def test_packed_needs_a_batch_of_one_and_unknown_keywords_are_refused(f, kda_inputs):
    with pytest.raises(ValueError, match=r"^cu_seqlens: .*batch of 1"):
        f(*kda_inputs(5, B=2), cu_seqlens=torch.tensor([0, 5]))
    with pytest.raises(TypeError, match="head_first"):
        f(*kda_inputs(5), head_first=True)


def test_intermediate_states_under_autograd_are_refused(kda_inputs):
    inputs = kda_inputs(5, ready=(-1, 0))
    with pytest.raises(ValueError, match=r"^return_intermediate_states: "):
        chunk_kda(*inputs, return_intermediate_states=True)
    with torch.no_grad():
        assert len(chunk_kda(*inputs, return_intermediate_states=True)) == 3


def test_A_log_keeps_its_shape_in_the_gradient(kda_inputs):
    A_log, bias = torch.zeros(1, 1, 2, 1).requires_grad_(), torch.zeros(2, 16).requires_grad_()
    inputs = [x.detach().float() for x in kda_inputs(5)]
    chunk_kda(*inputs, **GATE, lower_bound=-5.0, A_log=A_log, dt_bias=bias)[0].sum().backward()
    assert A_log.grad.shape == A_log.shape
    assert bias.grad.shape == bias.shape
    assert A_log.grad.abs().sum() > 0


class _Ops(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.tiles = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.k3lab.kda_chunk.default:
            self.tiles.append(args[10])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "options,tile",
    [
        ({}, 1),
        ({"safe_gate": True, "lower_bound": -5.0}, 1),
        ({**GATE, "A_log": torch.zeros(2, dtype=torch.float64)}, 1),
        ({**GATE, "lower_bound": -5.0}, 16),
        ({**GATE, "lower_bound": -5.0, "safe_gate": True}, 16),
        ({**GATE, "lower_bound": -10.0}, 8),
    ],
)
def test_which_path_runs(options, tile, kda_inputs):
    """The gate in the kernel decides by its bound; ready gates always take the path for any gate."""
    with _Ops() as ops:
        chunk_kda(*[x.detach() for x in kda_inputs(20, ready=(-1, 0))], **options)
    assert ops.tiles == [tile]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_changes_nothing(dtype, kda_inputs, run_kda):
    """Forward inside autocast, backward outside, as in training; for the chunk path also both inside."""
    inputs = [x.detach().to(dtype).requires_grad_() for x in kda_inputs(70)]
    options = {**GATE, "lower_bound": -5.0}

    def forward_inside(f):
        def call(*args, **kwargs):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return f(*args, **kwargs)

        return call

    for f in (chunk_kda, fused_recurrent_kda):
        want, got = run_kda(f, inputs, **options), run_kda(forward_inside(f), inputs, **options)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    want = run_kda(chunk_kda, inputs, **options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = run_kda(chunk_kda, inputs, **options)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_inputs_and_gradients_that_are_not_contiguous(kda_inputs, error):
    x = kda_inputs(70, ready=(-1, 0))
    strided = [t.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in x]
    d_o = torch.randn(1, 2, 70, 8, dtype=torch.float64).transpose(1, 2)
    want = torch.autograd.grad(chunk_kda(*x)[0], x, d_o.contiguous())
    got = torch.autograd.grad(chunk_kda(*strided)[0], strided, d_o)
    assert max(error(a, b) for a, b in zip(got, want, strict=True)) < 1e-14
    summed = torch.autograd.grad(chunk_kda(*strided)[0].sum(), strided)
    assert all(g.isfinite().all() for g in summed)


def test_compiles_whole_with_packed_sequences(kda_inputs, run_kda):
    inputs = [x.detach().float().requires_grad_() for x in kda_inputs(71)]
    cu, h0 = torch.tensor([0, 0, 5, 70, 71]), torch.randn(4, 2, 16, 8).requires_grad_()
    options = {**GATE, "lower_bound": -5.0, "A_log": torch.zeros(2).requires_grad_(), "cu_seqlens": cu}
    compiled = torch.compile(chunk_kda, fullgraph=True, backend="aot_eager")
    want, got = (run_kda(f, inputs, h0, **options) for f in (chunk_kda, compiled))
    # Not bit for bit: some versions of the tracer take the operators around the custom op apart.
    assert all((a - b).norm() <= 1e-6 * b.norm() for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("packed,keep", [(False, False), (True, True)])
def test_opcheck(packed, keep, kda_inputs):
    inputs = [x.detach().float().requires_grad_() for x in kda_inputs(20, ready=(-1, 0))]
    cu = torch.tensor([0, 3, 20]) if packed else None
    torch.library.opcheck(torch.ops.k3lab.kda_chunk.default, (*inputs, None, cu, None, 0.3, 64, 1, keep))


def test_memory_kept_for_backward(kda_inputs):
    """By default references to the inputs; with disable_recompute also the intermediates."""
    inputs = [x.detach().requires_grad_() for x in kda_inputs(128, dtype=torch.float32, ready=(-1, 0))]
    own = {x.data_ptr() for x in inputs}
    for keep in (False, True):
        sizes = []

        def pack(x, sizes=sizes):
            sizes.append(0 if x.data_ptr() in own else x.numel())
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            chunk_kda(*inputs, disable_recompute=keep)
        assert (sum(sizes) > 0) == keep
