"""Load balance by hand, over layers, updates and missing tokens."""

from __future__ import annotations

import math

import pytest
import torch

from k3lab.diagnostics.balance_metrics import LoadBalance, bias_metrics, drop_rates
from k3lab_kernels.router import max_vio_floor


def test_two_layers_by_hand() -> None:
    metric = LoadBalance([1, 3], experts=4, top_k=2)
    metric.update(torch.tensor([[4, 4, 4, 4], [12, 4, 0, 0]]))
    found = metric.compute()
    assert found["balance/layer_01/max_vio"] == pytest.approx(0)
    assert found["balance/layer_01/entropy"] == pytest.approx(1)
    assert found["balance/layer_03/max_vio"] == pytest.approx(2)
    assert found["balance/layer_03/min_vio"] == pytest.approx(1)
    assert found["balance/layer_03/cv"] == pytest.approx(math.sqrt((64 + 0 + 16 + 16) / 4) / 4)
    # weights 3/4 and 1/4
    entropy = (0.75 * math.log(4 / 3) + 0.25 * math.log(4)) / math.log(4)
    assert found["balance/layer_03/entropy"] == pytest.approx(entropy)
    # the model's number is the worst layer's; experts without a token add up
    assert found["balance/max_vio"] == pytest.approx(2)
    assert found["balance/min_vio"] == pytest.approx(1)
    assert found["balance/entropy"] == pytest.approx(entropy)
    assert found["balance/dead_experts"] == 2
    # the busiest expert of layer 3 has 12 of 16: above a capacity of 4 are 8, above one of 5 are 7
    assert found["balance/drop_rate_1.00"] == found["balance/layer_03/drop_rate_1.00"] == pytest.approx(8 / 16)
    assert found["balance/drop_rate_1.25"] == pytest.approx(7 / 16)
    assert found["balance/layer_01/drop_rate_1.00"] == 0
    assert found["balance/max_vio_floor"] == pytest.approx(max_vio_floor(8, 4, 2))


def test_counts_add_up_over_micro_batches() -> None:
    whole, parts = LoadBalance([0], 4, 1), LoadBalance([0], 4, 1)
    whole.update(torch.tensor([[5, 1, 2, 8]]))
    parts.update(torch.tensor([[5, 0, 0, 3]]))
    parts.update(torch.tensor([[0, 1, 2, 5]]))
    assert whole.compute() == parts.compute()
    parts.reset()
    parts.update(torch.tensor([[1, 1, 1, 1]]))
    assert parts.compute()["balance/max_vio"] == pytest.approx(0)


def test_no_tokens_give_no_nan_and_no_floor() -> None:
    metric = LoadBalance([0], 4, 1)
    metric.update(torch.zeros(1, 4, dtype=torch.int64))
    found = metric.compute()
    assert not any(math.isnan(v) for v in found.values())
    assert "balance/max_vio_floor" not in found


def test_a_capacity_is_rounded_up() -> None:
    counts = torch.tensor([[5, 3, 2], [4, 3, 3], [0, 0, 0]])  # a mean of 10/3 leaves room for 4
    assert drop_rates(counts, 1.0).tolist() == pytest.approx([1 / 10, 0, 0])
    assert drop_rates(counts, 0.9).tolist() == pytest.approx([2 / 10, 1 / 10, 0])  # for 3
    assert drop_rates(torch.tensor([[7, 3]]), 1.4).tolist() == [0]  # 5 · 1.4 is 7, and not a little more


def test_biases_by_hand() -> None:
    found = bias_metrics({1: torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0]), 3: torch.tensor([0.5, -0.5, 0.0, 0.0, 0.0])})
    assert found["balance/bias_spread"] == found["balance/layer_01/bias_spread"] == 4
    assert found["balance/layer_03/bias_spread"] == 1
    shown = [found[f"balance/layer_01/bias_{q}"] for q in ("min", "q25", "median", "q75", "max")]
    assert shown == [0, 1, 2, 3, 4]
    assert bias_metrics({}) == {}


def test_wrong_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[4, 1\]: must be \[1, 4\]"):
        LoadBalance([0], 4, 1).update(torch.zeros(4, 1, dtype=torch.int64))
