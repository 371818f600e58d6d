"""Load balance by hand, over layers, updates and missing tokens."""

from __future__ import annotations

import math

import pytest
import torch

from k3lab.diagnostics.load import LoadBalance
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


def test_wrong_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[4, 1\]: must be \[1, 4\]"):
        LoadBalance([0], 4, 1).update(torch.zeros(4, 1, dtype=torch.int64))
