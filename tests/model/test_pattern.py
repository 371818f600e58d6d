"""The rhythm of mixers over the layers."""

from __future__ import annotations

import pytest

from k3lab.model.pattern import layer_pattern

K, M, S = "kda", "mla", "softmax_attention"


@pytest.mark.parametrize(
    ("pattern", "last", "layers", "selected", "expected"),
    [
        (None, None, 3, [K], [K, K, K]),
        (None, None, 4, [K, M], [K, K, K, M]),
        (None, None, 6, [K, M], [K, K, K, M, K, M]),
        (None, None, 1, [K, M], [M]),
        (None, M, 3, [K], [K, K, M]),
        ([K, M], None, 5, [K, M], [K, M, K, M, K]),
        ([K, M], M, 5, [K, M], [K, M, K, M, M]),
        ([K, S, M], None, 2, [K, M, S], [K, S]),
    ],
)
def test_rhythm(pattern: list, last: str, layers: int, selected: list, expected: list) -> None:
    assert layer_pattern(pattern, last, layers, selected) == expected


def test_kimi_linear_and_k3_have_their_published_attention_layers() -> None:
    for layers, published in ((27, [*range(4, 25, 4), 27]), (93, [*range(4, 93, 4), 93])):
        names = layer_pattern(None, None, layers, [K, M])
        assert [i for i, name in enumerate(names, 1) if name == M] == published


def test_three_mixers_need_a_pattern() -> None:
    with pytest.raises(ValueError, match=r"model\.pattern=null"):
        layer_pattern(None, None, 4, [K, M, S])
