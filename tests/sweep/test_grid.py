"""From a command line to the jobs that it means."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from k3lab.config.errors import UserError
from k3lab.config.registry import options
from k3lab.sweep.grid import Grid, GridSettings
from k3lab.sweep.space import parse_space


def jobs(*overrides: str, seeds: int | None = None) -> list[tuple[str, ...]]:
    config: Any = SimpleNamespace(seed=5)
    grid = Grid(GridSettings(seeds=seeds), config, parse_space(overrides))
    assert [t.index for t in grid.known()] == list(range(len(grid.known())))
    asked = list(iter(grid.ask, None))
    assert asked == grid.known()
    return [t.overrides for t in asked]


def test_every_combination_the_last_value_fastest() -> None:
    assert jobs("decay=softplus,scalar", "optim.lr=1e-3", "router=topk,quantile") == [
        ("optim.lr=1e-3", "decay=softplus", "router=topk"),
        ("optim.lr=1e-3", "decay=softplus", "router=quantile"),
        ("optim.lr=1e-3", "decay=scalar", "router=topk"),
        ("optim.lr=1e-3", "decay=scalar", "router=quantile"),
    ]


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("data.seq_len=choice(64,128)", ["64", "128"]),
        ("trainer.max_steps=range(1,4)", ["1", "2", "3"]),
        ("mixer=[kda],[kda,mla]", ["[kda]", "[kda,mla]"]),
        ('data.path="a b","c,d"', ['"a b"', '"c,d"']),
        ("trainer.clip=null,1.0", ["null", "1.0"]),
        ("model.layers=sort(4,2,reverse=true)", ["4", "2"]),
    ],
)
def test_values_are_written_as_hydra_reads_them(override: str, values: list[str]) -> None:
    key = override.split("=")[0]
    assert jobs(override) == [(f"{key}={value}",) for value in values]


def test_glob_chooses_among_the_options_of_a_group() -> None:
    assert jobs("decay=glob(s*)") == [(f"decay={name}",) for name in options("decay") if name.startswith("s")]
    with pytest.raises(UserError, match="no value matches"):
        jobs("decay=glob(zzz*)")
    with pytest.raises(UserError, match="glob"):
        jobs("optim.lr=glob(*)")


def test_without_values_there_is_one_job() -> None:
    assert jobs("decay=softplus") == [("decay=softplus",)]


def test_seeds_repeat_each_combination() -> None:
    assert jobs("decay=softplus,scalar", "seed=9", seeds=2) == [
        ("decay=softplus", "seed=5"),
        ("decay=softplus", "seed=6"),
        ("decay=scalar", "seed=5"),
        ("decay=scalar", "seed=6"),
    ], "the seed is the configuration's, wherever it was set"
    with pytest.raises(UserError, match="swept already"):
        jobs("seed=1,2", seeds=2)
    config: Any = SimpleNamespace(seed=0)
    grid = Grid(GridSettings(seeds=2), config, parse_space(["decay=softplus,scalar"]))
    assert [t.arm for t in grid.known()] == ["decay=softplus"] * 2 + ["decay=scalar"] * 2
    grid = Grid(GridSettings(), config, parse_space(["seed=1,2", "decay=softplus,scalar"]))
    assert [t.arm for t in grid.known()] == ["decay=softplus", "decay=scalar"] * 2, "swept by hand they are seeds too"
    with pytest.raises(ValueError, match="seeds=0"):
        GridSettings(seeds=0)


@pytest.mark.parametrize(
    "override", ["paths.output=a,b", "launch.jobs=1,2", "sweep=grid,grid", "tracking.experiment=a,b", "name=a,b"]
)
def test_what_a_sweep_has_once_cannot_be_swept(override: str) -> None:
    with pytest.raises(UserError, match="one for the whole sweep"):
        jobs(override)


def test_other_slips() -> None:
    with pytest.raises(UserError, match="given twice"):
        jobs("decay=softplus,scalar", "decay=none")
    with pytest.raises(UserError, match=r"optim\.lr=0\.001,0\.1"):
        jobs("optim.lr=interval(0.001,0.1)")
    with pytest.raises(UserError, match="sweep=optuna searches"):
        jobs("optim.lr=tag(log,interval(0.001,0.1))")
    with pytest.raises(UserError, match="100000 jobs"):
        jobs("seed=range(0,100000)")
    with pytest.raises(UserError, match="no override"):
        jobs("decay")
