"""The pre-norm stream against hand-derived sums."""

from __future__ import annotations

import pytest
import torch

from k3lab.residual.prenorm import PreNorm, PreNormSettings


def test_each_sublayer_reads_the_sum_of_all_before() -> None:
    residual = PreNorm(PreNormSettings(), sublayers=3, hidden_size=2, eps=0.0).double()
    stream = residual.start(torch.tensor([[[3.0, 4.0]]], dtype=torch.float64))
    seen = []
    for i, output in enumerate(([1.0, -4.0], [-4.0, 1.0], [8.0, 5.0])):
        seen.append(residual.mixture(stream, i)[0, 0].tolist())
        stream = residual.write(stream, i, torch.tensor([[output]], dtype=torch.float64))
    assert seen == [[3, 4], [4, 0], [0, 1]]
    assert residual.mixture(stream, 3)[0, 0].tolist() == [8, 6]
    # (8, 6) has mean square 50
    torch.testing.assert_close(residual.finish(stream)[0, 0], torch.tensor([8.0, 6.0]).double() / 50**0.5)
    assert residual.source_weights(stream, 2) is None


def test_eps_of_the_settings_wins_over_the_model() -> None:
    x = torch.tensor([[[3.0, 4.0]]], dtype=torch.float64)  # mean square 12.5
    for settings, model_eps, total in ((PreNormSettings(), 3.5, 16.0), (PreNormSettings(eps=12.5), 3.5, 25.0)):
        residual = PreNorm(settings, 1, 2, model_eps).double()
        torch.testing.assert_close(residual.read(residual.start(x), 0), x / total**0.5)


def test_norms_have_their_own_weights() -> None:
    residual = PreNorm(PreNormSettings(), sublayers=2, hidden_size=2, eps=1e-6)
    assert sorted(name for name, _ in residual.named_parameters()) == [
        "final_norm.weight",
        "norms.0.weight",
        "norms.1.weight",
    ]


def test_settings_refuse_a_negative_eps() -> None:
    with pytest.raises(ValueError, match="eps=-1"):
        PreNormSettings(eps=-1.0)
