"""No decay: zeros whatever the input."""

from __future__ import annotations

import torch

from k3lab.decay.none import NONE, NoneSettings


def test_is_zero_and_has_no_parameters() -> None:
    decay = NONE(NoneSettings(), 2, 4)
    assert list(decay.parameters()) == []
    assert decay.channels == 0
    for dtype, wide in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        g = decay.log_decay(torch.empty(1, 3, 2, 0, dtype=dtype))
        assert torch.equal(g, torch.zeros(1, 3, 2, 4, dtype=wide))
    assert decay.dead_fraction() == 1
    assert decay.half_lives().isinf().all()


def test_marks_its_gate_as_bounded() -> None:
    arguments = NONE(NoneSettings(), 2, 4).kernel_args(torch.empty(1, 3, 2, 0))
    assert arguments["safe_gate"]
    assert arguments["lower_bound"] == -5
    assert not arguments["use_gate_in_kernel"]
