"""Random inputs of the KDA functions, and one call with all its gradients."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def kda_inputs():
    """q, k, v, g, beta as leaves; g holds raw logits or, with ready=(low, high), a ready log decay."""

    def make(T, *, B=1, H=2, HV=None, K=16, V=8, dtype=torch.float64, ready=None):
        HV = H if HV is None else HV
        g = torch.randn(B, T, HV, K, dtype=dtype)
        if ready is not None:
            g = ready[0] + (ready[1] - ready[0]) * torch.rand(B, T, HV, K, dtype=dtype)
        tensors = [torch.randn(B, T, H, K), torch.randn(B, T, H, K), torch.randn(B, T, HV, V), g, torch.randn(B, T, HV)]
        return [x.to(dtype).requires_grad_() for x in tensors]

    return make


@pytest.fixture
def run_kda():
    """Outputs and gradients of `f` for inputs, an optional state and options, as one list."""

    def run(f, inputs, h0=None, seed=0, **options):
        options = {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True, **options}
        o, state = f(*inputs, initial_state=h0, output_final_state=True, **options)
        random = torch.Generator().manual_seed(seed)
        d_o = torch.randn(o.shape, generator=random, dtype=torch.float64).to(o.dtype)
        d_state = torch.randn(state.shape, generator=random, dtype=torch.float64).to(state.dtype)
        extra = [x for x in (h0, options.get("A_log"), options.get("dt_bias")) if x is not None and x.requires_grad]
        grads = torch.autograd.grad([o, state], [*inputs, *extra], [d_o, d_state])
        return [o, state, *grads]

    return run
