"""Sizes of the model: what is derived, what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from k3lab.model.settings import ModelSettings


def test_head_dim_is_derived_or_free() -> None:
    assert ModelSettings(hidden_size=96, heads=3).head_dim == 32
    assert ModelSettings(hidden_size=100, heads=3, head_dim=64).head_dim == 64


def test_initial_deviation_follows_the_width_to_k3_s_own() -> None:
    assert ModelSettings(hidden_size=7168, heads=96, head_dim=128).init_std == pytest.approx(0.006, rel=0.02)
    assert ModelSettings(init_std=0.1).init_std == 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_size": 100, "heads": 3}, "hidden_size=100: must be a multiple of heads=3"),
        ({"layers": 0}, "layers=0: must be positive"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"pattern": []}, "pattern="),
        ({"vocab_size": -1}, "vocab_size=-1"),
        ({"init_std": 0.0}, "init_std=0.0"),
    ],
)
def test_refuses(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelSettings(**settings)


@pytest.mark.parametrize(
    ("settings", "mixers", "message"),
    [
        ({"pattern": ["kda", "mle"]}, ["kda", "mla"], r"model\.pattern=mle.*mla"),
        ({"last_mixer": "mla"}, ["kda"], r"model\.last_mixer=mla"),
        ({}, ["kda", "mla", "softmax_attention"], r"model\.pattern=null"),
    ],
)
def test_refuses_patterns_that_do_not_fit_the_mixers(settings: dict, mixers: list, message: str) -> None:
    config = SimpleNamespace(mixer=dict.fromkeys(mixers))
    with pytest.raises(ValueError, match=message):
        ModelSettings(**settings).check(config)


@pytest.mark.parametrize(
    ("settings", "unused"),
    [
        ({}, []),
        ({"layers": 1}, ["kda"]),
        ({"pattern": ["kda"]}, ["mla"]),
        ({"pattern": ["kda"], "last_mixer": "mla"}, []),
        ({"pattern": ["kda", "mla"], "layers": 1}, ["mla"]),
    ],
)
def test_warns_of_mixers_without_a_layer(settings: dict[str, Any], unused: list[str]) -> None:
    lines = ModelSettings(**settings).warnings(SimpleNamespace(mixer={"kda": None, "mla": None}))
    assert [line.split(":")[0] for line in lines] == [f"mixer={name}" for name in unused]
