"""data=text: windows, validation, text form, settings."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from k3lab.config.errors import UserError
from k3lab.config.registry import conf_dir
from k3lab.data.text import Text, TextSettings


@pytest.fixture
def corpus(tmp_path):
    for i in range(12):
        (tmp_path / f"f{i:02}.txt").write_text("".join(f"{i}:{n} " for n in range(50)))
    return tmp_path


def source(path, seed=0, **settings):
    built = Text(TextSettings(path=str(path), **settings), seed)
    built.prepare()
    return built


def test_sequences_are_windows_of_training_text_shifted_by_one(corpus):
    text = source(corpus, seq_len=16, batch_size=8)
    train = text.corpus.train.tobytes()
    batch = text.train_batch(0, 0, 8)
    for tokens, targets in zip(batch["tokens"], batch["targets"], strict=True):
        assert bytes(tokens.tolist()) in train
        assert torch.equal(tokens[1:], targets[:-1])
        assert bytes([*tokens.tolist(), int(targets[-1])]) in train
    assert text.targets_in_step(0) == 8 * 16


def test_windows_reach_both_ends_of_the_text(tmp_path):
    (tmp_path / "a").write_bytes(bytes(range(1, 80)))
    text = source(tmp_path / "a", seq_len=4, batch_size=64, validation_fraction=0.5)
    starts = torch.cat([text.train_batch(step, 0, 64)["tokens"][:, 0] for step in range(20)])
    assert int(starts.min()) == 1
    assert int(starts.max()) == len(text.corpus.train) - 4


def test_validation_windows_cover_the_held_out_text_once(corpus):
    text = source(corpus, seq_len=16, batch_size=8, validation_fraction=0.3)
    held_out = text.corpus.validation
    batches = [text.val_batch(i, 0, 8) for i in range(text.val_batches_available())]
    real = torch.cat([b["tokens"][(b["targets"] != -100).all(dim=1)] for b in batches])
    windows = held_out[: (len(held_out) - 1) // 16 * 16].reshape(-1, 16)
    assert sorted(map(tuple, real.tolist())) == sorted(map(tuple, windows.tolist()))
    padding = sum(int((b["targets"] == -100).all(dim=1).sum()) for b in batches)
    assert len(real) + padding == 8 * len(batches)
    assert padding < 8


def test_a_few_validation_batches_see_many_files():
    text = Text(TextSettings(seq_len=256, batch_size=16), seed=0)
    text.prepare()
    starts = text._windows[:32] / len(text._windows)
    assert np.histogram(starts, bins=4, range=(0, 1))[0].min() >= 2


def test_the_standard_library_is_the_default():
    text = Text(TextSettings(), seed=0)
    text.prepare()
    assert text.notes == []
    constants = text.constants()
    assert constants["data/unigram_bits_per_byte"] == text.unigram_entropy()
    assert 4 < text.unigram_entropy() < 5.5
    total = constants["data/train_bytes"] + constants["data/validation_bytes"]
    assert total > 5e6
    assert 0.005 < constants["data/validation_bytes"] / total < 0.2
    assert not set(text.corpus.train_files) & set(text.corpus.validation_files)
    assert b"\0" not in text.corpus.train.tobytes()


def test_preparing_twice_reads_once(corpus):
    text = source(corpus, seq_len=16)
    before = text.corpus
    text.prepare()
    assert text.corpus is before


def test_text_form_round_trips(corpus):
    text = source(corpus, seq_len=16)
    for sample in ("plain", "é 語 🙂\r\n", ""):
        assert text.decode(text.encode(sample)) == sample
    assert text.encode(os.fsdecode(b"\xff")) == [255]
    assert text.decode([65, 255, 300]) == "A\ufffd\ufffd"


def test_a_path_may_be_one_or_a_list_and_is_made_absolute(corpus, monkeypatch):
    monkeypatch.chdir(corpus)
    assert TextSettings(path="f00.txt").path == str(corpus / "f00.txt")
    both = TextSettings(path=["f00.txt", "./f01.txt"], seq_len=16)
    assert both.path == [str(corpus / "f00.txt"), str(corpus / "f01.txt")]
    text = Text(both, 0)
    text.prepare()
    assert len(text.corpus.train_files) == len(text.corpus.validation_files) == 1
    monkeypatch.setenv("HOME", str(corpus))
    assert TextSettings(path="~/x").path == str(corpus / "x")


def test_a_missing_path_is_one_line(corpus):
    with pytest.raises(UserError, match=r"no such file or folder; did you mean 'f07.txt'"):
        source(corpus / "f07.tx")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"path": 2024}, "path=2024: must be null, a file, a folder or a list of them .*./2024"),
        ({"path": []}, "path=.*must be null"),
        ({"path": ["a", 1]}, "path=.*must be null"),
        ({"path": ""}, "path=: must be null"),
        ({"pattern": ""}, "pattern=: must be"),
        ({"validation_fraction": 0.0}, r"validation_fraction=0.0: must lie in \(0, 1\)"),
        ({"validation_fraction": 1.0}, r"validation_fraction=1.0: must lie in \(0, 1\)"),
        ({"seq_len": 0}, "seq_len=0: must be positive"),
        ({"batch_size": -1}, "batch_size=-1: must be positive"),
    ],
)
def test_wrong_settings(wrong, message):
    with pytest.raises(ValueError, match=message):
        TextSettings(**wrong)


def config(devices=1, accumulate=1, vocab_size=None):
    return SimpleNamespace(
        trainer=SimpleNamespace(devices=devices, accumulate=accumulate),
        model=SimpleNamespace(vocab_size=vocab_size),
    )


def test_what_other_groups_must_allow():
    TextSettings(batch_size=12).check(config(devices=3, accumulate=2, vocab_size=256))
    with pytest.raises(ValueError, match=r"data.batch_size=12: must be a multiple of .*=8"):
        TextSettings(batch_size=12).check(config(devices=2, accumulate=4))
    with pytest.raises(ValueError, match=r"model.vocab_size=255: .* at least 256"):
        TextSettings().check(config(vocab_size=255))


def test_the_yaml_says_the_defaults():
    plain = yaml.safe_load((conf_dir() / "data" / "text.yaml").read_text())
    assert next(iter(plain)) == "name"
    assert TextSettings(**plain) == TextSettings()


@pytest.mark.parametrize("group,name", [("data", "text"), ("data", "mqar"), ("optim", "adamw"), ("schedule", "wsd")])
def test_settings_and_files_need_no_torch(group, name):
    code = (
        "import sys; from k3lab.config.registry import settings_class; import k3lab.data.corpus; "
        f"print(settings_class({group!r}, {name!r})(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith(" False")
