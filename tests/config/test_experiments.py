"""The experiments that ship: the sweeps in their headers compose, with what their axes ask for."""

from __future__ import annotations

import re
import shlex

import pytest

from k3lab.config.load import load
from k3lab.config.registry import conf_dir, options
from k3lab.sweep.space import parse_space, with_arms

ALONE = ("quickstart",)  # one run, no sweep


def commands(name: str) -> list[list[str]]:
    """Overrides of the ``k3lab train -m`` commands in the comments of an experiment's file."""
    lines = (conf_dir() / "experiment" / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    text = "\n".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))
    text = re.sub(r"\\\n", " ", text)
    found = [line for line in text.splitlines() if "k3lab train -m" in line]
    return [shlex.split(line.split("k3lab train -m", 1)[1]) for line in found]


@pytest.mark.parametrize("name", [name for name in options("experiment") if name not in ALONE])
def test_its_commands_compose(name: str) -> None:
    assert commands(name)
    for overrides in commands(name):
        arms = load(parse_space(overrides).first()).sweep.arms
        space = parse_space(with_arms(overrides, arms))
        assert space.dimensions
        assert any(text == f"experiment={name}" for text in space.fixed)
        for point in {tuple(d.values[i] for d in space.dimensions) for i in (0, 1, -1)}:
            config = load([*space.fixed, *point])
            assert config.name == name


@pytest.mark.parametrize("length", [256, 512, 1024, 2048])
def test_kl_figure4_sets_each_task_whatever_is_swept(length: int) -> None:
    base = ["experiment=kl_figure4", f"data.seq_len={length}"]
    mqar = load([*base, "data=mqar", "mixer=mamba2"])
    assert mqar.data.num_kv_pairs == length // 4
    assert list(mqar.mixer) == ["mamba2"]
    assert load([*base, "data=stack"]).data.stacks == 64
    assert load([*base, "data=palindrome"]).data.vocab_size == 128
    assert (mqar.model.layers, mqar.model.heads, mqar.model.head_dim) == (2, 2, 128)


def test_techniques_keeps_the_size_that_the_command_line_chooses() -> None:
    assert load(["experiment=techniques"]).model.layers == 8
    assert load(["experiment=techniques", "model=small"]).model == load(["model=small"]).model
