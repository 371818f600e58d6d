"""Presets: what a model and an experiment bring for options of other groups, and who has the last word."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from k3lab.config import registry
from k3lab.config.errors import UserError
from k3lab.config.load import load, load_folder

MODEL = """
name: tiny
hidden_size: 64
heads: 2
presets:
  ffn:
    moe: {experts: 12, top_k: 3}
    swiglu: {hidden: 40}
  mixer:
    mamba2: {conv: 2}
    mla: {kv_rank: 20}
  residual:
    prenorm: {}
"""
EXPERIMENT = """# @package _global_
defaults:
  - override /residual: full_attnres
name: trial
ffn:
  top_k: 5
presets:
  ffn:
    moe: {experts: 14}
  data:
    stack: {stacks: 7}
    parity: {seq_len: 12}
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Write a file of a copy of conf/, which is the one in force."""
    folder = tmp_path / "conf"
    shutil.copytree(registry.conf_dir(), folder)
    for module in ("registry", "load", "presets"):
        monkeypatch.setattr(f"k3lab.config.{module}.conf_dir", lambda: folder)
    for function in (registry.groups, registry.options):
        function.cache_clear()

    def write(file: str, text: str) -> None:
        (folder / file).write_text(text)
        registry.options.cache_clear()

    yield write
    for function in (registry.groups, registry.options):
        function.cache_clear()


def test_a_model_s_presets_choose_and_set(write: Callable[[str, str], None]) -> None:
    write("model/tiny.yaml", MODEL)
    config = load(["model=tiny"])
    assert (config.ffn.name, config.ffn.experts, config.ffn.top_k, config.ffn.shared) == ("moe", 12, 3, 1)
    assert list(config.mixer) == ["mamba2", "mla"]
    assert (config.mixer["mamba2"].conv, config.mixer["mla"].kv_rank) == (2, 20)
    assert config.residual.name == "prenorm"
    assert config.decay.name == "lower_bound"


def test_the_command_line_has_the_last_word(write: Callable[[str, str], None]) -> None:
    write("model/tiny.yaml", MODEL)
    config = load(["model=tiny", "ffn=swiglu", "mixer=[kda,mla]", "mixer.mla.kv_rank=8", "residual=full_attnres"])
    assert (config.ffn.name, config.ffn.hidden) == ("swiglu", 40)
    assert list(config.mixer) == ["kda", "mla"]
    assert config.mixer["mla"].kv_rank == 8
    assert config.residual.name == "full_attnres"
    plain = load(["model=tiny", "ffn=latent_moe"])
    assert plain.ffn == load(["ffn=latent_moe"]).ffn
    assert load(["model=tiny", "ffn.experts=9"]).ffn.experts == 9


def test_an_experiment_comes_between(write: Callable[[str, str], None]) -> None:
    write("model/tiny.yaml", MODEL)
    write("experiment/trial.yaml", EXPERIMENT)
    config = load(["experiment=trial", "model=tiny"])
    assert config.residual.name == "full_attnres"
    assert (config.ffn.name, config.ffn.experts, config.ffn.top_k) == ("moe", 14, 5)
    write("experiment/trial.yaml", EXPERIMENT.replace("residual: full_attnres", "model: tiny"))
    assert load(["experiment=trial"]).residual.name == "prenorm"


def test_an_experiment_s_presets_set_whatever_a_sweep_chooses(write: Callable[[str, str], None]) -> None:
    write("experiment/trial.yaml", EXPERIMENT)
    assert load(["experiment=trial", "data=stack"]).data.stacks == 7
    assert load(["experiment=trial", "data=parity"]).data.seq_len == 12
    assert load(["experiment=trial", "data=mqar"]).data == load(["data=mqar"]).data


def test_mixers_that_the_pattern_adds_have_their_presets(write: Callable[[str, str], None]) -> None:
    write("model/tiny.yaml", MODEL.replace("presets:", "pattern: [softmax_attention, mla]\npresets:"))
    config = load(["model=tiny", "mixer=softmax_attention"])
    assert config.mixer["mla"].kv_rank == 20


def test_presets_are_no_part_of_what_a_run_keeps(write: Callable[[str, str], None], tmp_path: Path) -> None:
    write("model/tiny.yaml", MODEL)
    config = load(["model=tiny"])
    assert "presets" not in config.to_yaml()
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert load_folder(tmp_path) == config
    assert load_folder(tmp_path, ["model=tiny"]) == config


def test_a_misspelt_preset_is_refused(write: Callable[[str, str], None]) -> None:
    write("model/tiny.yaml", MODEL.replace("kv_rank", "kv_rnak"))
    with pytest.raises(UserError, match=r"unknown key 'mixer\.mla\.kv_rnak'; did you mean 'mixer\.mla\.kv_rank'"):
        load(["model=tiny"])
