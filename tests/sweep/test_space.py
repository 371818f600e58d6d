"""Scales: intervals and ranges of a command line."""

from __future__ import annotations

import pytest

from k3lab.config.errors import UserError
from k3lab.sweep.space import Scale, number, parse_space


@pytest.mark.parametrize(
    ("override", "scale"),
    [
        ("optim.lr=interval(1e-4,0.1)", Scale(1e-4, 0.1)),
        ("optim.lr=tag(log,interval(1e-4,0.1))", Scale(1e-4, 0.1, log=True)),
        ("model.layers=int(interval(2,8))", Scale(2, 8)),
        ("model.layers=range(2,9)", Scale(2, 8, 1)),
        ("model.layers=range(8,1,-2)", Scale(2, 8, 2)),
        ("optim.lr=range(0.5,2,0.5)", Scale(0.5, 1.5, 0.5)),
        ("model.layers=tag(log,range(1,65))", Scale(1, 64, 1, log=True)),
        ("model.layers=shuffle(range(2,9))", None),
        ("model.layers=range(2,3)", None),
        ("model.layers=2,4,8", None),
    ],
)
def test_scales(override: str, scale: Scale | None) -> None:
    (dimension,) = parse_space([override]).dimensions
    assert dimension.scale == scale
    assert dimension.continuous == ("interval" in override)
    first = dimension.values[0].split("=")[1]
    assert float(first) in {float(scale.low), float(scale.high)} if scale else first


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.lr=interval(1,1)", "first bound must be below"),
        ("optim.lr=interval(2,1)", "first bound must be below"),
        ("optim.lr=tag(log,interval(0,1))", "positive bounds"),
        ("optim.lr=tag(ln,interval(1,2))", "the only tag is log"),
        ("optim.lr=tag(log,choice(1,2))", "needs an interval"),
        ("model.layers=tag(log,range(2,64,2))", "steps of 1"),
    ],
)
def test_slips(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_space([override])


def test_numbers_are_written_exactly() -> None:
    assert [number(v) for v in (8.0, 64, 0.1, 1e-5, 1 / 3)] == ["8", "64", "0.1", "1e-05", "0.3333333333333333"]
    assert number(2.5) == "2.5"
