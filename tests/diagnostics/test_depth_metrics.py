"""Depth metrics by hand."""

from __future__ import annotations

import math

import pytest
import torch

from k3lab.diagnostics.depth_metrics import depth_metrics, effective_rank, linear_cka, source_metrics


def test_sizes_and_directions_by_hand() -> None:
    h0, f0 = torch.tensor([[3.0, 4.0], [3.0, 4.0]]), torch.tensor([[4.0, -3.0], [-3.0, -4.0]])
    h1, f1 = h0 + f0, torch.tensor([[7.0, 1.0], [2.0, 0.0]])
    h2 = torch.tensor([[7.0, 1.0], [1.0, 1.0]])
    g0, g1 = torch.full((2, 2), 0.5), torch.zeros(2, 2)
    found = depth_metrics([h0, h1, h2], [f0, f1], [g0, g1], torch.tensor([0, 1]))
    assert found["depth/output_rms/layer_00"] == pytest.approx(math.sqrt(50 / 4))
    assert found["depth/grad_rms/layer_00"] == pytest.approx(0.5)
    assert found["depth/grad_rms/layer_01"] == 0
    assert found["depth/update_ratio/layer_00"] == pytest.approx(1)
    # one token turns by 90°, the other is erased
    assert found["depth/update_cosine/layer_00"] == pytest.approx((0 - 1) / 2)
    # h0 → h1: 45° and a zero vector, whose cosine counts as 0
    assert found["depth/block_influence/layer_00"] == pytest.approx(1 - (math.sqrt(0.5) + 0) / 2)
    assert found["depth/block_influence/layer_01"] == pytest.approx(1 - (1 + 0) / 2)
    # 45° and, for the zero vector, a right angle
    assert found["depth/angular_distance/layer_00"] == pytest.approx((1 / 4 + 1 / 2) / 2)
    assert found["depth/angular_distance/layer_01"] == pytest.approx((0 + 1 / 2) / 2, abs=1e-3)
    assert found["depth/effective_rank/layer_00"] == pytest.approx(1)  # both tokens are the same


@pytest.mark.parametrize("shape", [(6, 4), (4, 6)])
def test_effective_rank_of_known_spectra(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    u, _, v = torch.linalg.svd(torch.randn(shape, dtype=torch.float64), full_matrices=False)
    cases = {4.0: [1.0, 1, 1, 1], 1.0: [5.0, 0, 0, 0], math.exp(1.5 * math.log(2)): [0.5, 0.25, 0.25, 0]}
    x = torch.stack([u @ torch.diag(torch.tensor(s, dtype=torch.float64)) @ v for s in cases.values()])
    assert effective_rank(x).tolist() == pytest.approx(list(cases), rel=1e-6)


def test_effective_rank_of_bad_streams() -> None:
    x = torch.randn(3, 5, 4)
    x[0, 0, 0] = math.nan
    x[1, 0, 0] = math.inf
    ranks = effective_rank(x).tolist()
    assert math.isnan(ranks[0])
    assert math.isnan(ranks[1])
    assert 1 < ranks[2] < 4
    assert effective_rank(torch.zeros(1, 5, 4)).isfinite().all()


def test_linear_cka_by_hand() -> None:
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]])
    only = x * torch.tensor([1.0, 0.0])  # its first column alone
    found = linear_cka(torch.stack([x, 3 * x @ turn + 5, only, torch.ones(4, 2)]))
    assert found[0, 1] == pytest.approx(1)  # a rotation, a factor and a shift change nothing
    # ⟨K, K'⟩ = Σ (Xᵀ X')² = 2² and ‖K‖ = √(2² + 8²), ‖K'‖ = 2
    assert found[0, 2] == pytest.approx(4 / (math.sqrt(68) * 2))
    assert found[2, 0] == found[0, 2]
    assert found[3].isnan().all()  # the same at every token: no similarity to speak of


def test_source_weights_by_hand() -> None:
    one = torch.ones(1, 2)
    two = torch.tensor([[0.5, 1.0], [0.5, 0.0]])
    three = torch.tensor([[0.25, 0.5], [0.25, 0.25], [0.5, 0.25]])
    found = source_metrics([one, two, three], max_weights=5)
    assert found["depth/source_weight/layer_01/source_00"] == pytest.approx(0.75)
    assert found["depth/source_entropy/layer_01"] == pytest.approx((1 + 0) / 2)
    # the last mix is the output's
    assert found["depth/embedding_mass/output"] == pytest.approx(0.375)
    assert found["depth/last_source_mass/output"] == pytest.approx(0.375)
    assert found["depth/source_weight/output/source_01"] == pytest.approx(0.25)
    assert found["depth/source_entropy/output"] == pytest.approx(1.5 * math.log(2) / math.log(3))
    assert not any("layer_00" in name for name in found)  # one source: nothing to show


def test_source_weights_above_the_limit_are_summed_only() -> None:
    found = source_metrics([torch.full((3, 2), 1 / 3)], max_weights=2)
    assert not any("source_weight" in name for name in found)
    assert found["depth/embedding_mass/output"] == pytest.approx(1 / 3)


def test_prenorm_has_no_source_metrics() -> None:
    assert source_metrics([None, None], 100) == {}
