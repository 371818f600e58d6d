"""data=shards: windows and packed rows of a prepared folder, at any split, for any worker."""

import math
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from k3lab.config.errors import UserError
from k3lab.config.registry import conf_dir, settings_class
from k3lab.data.loader import StepDataset, train_loader, val_loader
from k3lab.data.prepare import prepare
from k3lab.data.shards import Shards, ShardsSettings
from k3lab.data.tokenize import train_bpe


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("shards")
    texts = root / "texts"
    texts.mkdir()
    for i in range(60):
        (texts / f"{i:02}").write_text("".join(f"{i}:{n} " for n in range(3 + i % 17)))
    prepare([texts], root / "tokens", None, 0.3)
    return root / "tokens"


def source(folder, seed=0, **settings):
    built = Shards(ShardsSettings(**{"path": str(folder), "seq_len": 16, "batch_size": 12, **settings}), seed)
    built.prepare()
    return built


@pytest.fixture(params=[False, True], ids=["windows", "packed"])
def packing(request):
    return request.param


def rows(batches):
    return torch.cat([torch.cat([batch[key].long() for key in sorted(batch)], dim=1) for batch in batches])


def test_windows_are_pieces_of_the_tokens_shifted_by_one(folder):
    shards = source(folder)
    line = shards.train.read(0, len(shards.train)).tolist()
    text = bytes(i % 256 for i in line)
    batch = shards.train_batch(0, 0, 12)
    assert set(batch) == {"tokens", "targets"}
    for tokens, targets in zip(batch["tokens"], batch["targets"], strict=True):
        assert torch.equal(tokens[1:], targets[:-1])
        assert bytes(i % 256 for i in [*tokens.tolist(), int(targets[-1])]) in text
    starts = torch.cat([source(folder, seed=s).train_batch(0, 0, 600)["tokens"][:, 0] for s in range(2)])
    assert len(starts.unique()) > 10


def test_windows_reach_both_ends(tmp_path):
    (tmp_path / "text").write_text("".join(map(chr, range(1, 100))))
    prepare([tmp_path / "text"], tmp_path / "tokens", None, 0.5)
    shards = source(tmp_path / "tokens", seq_len=4)
    firsts = torch.cat([shards.train_batch(step, 0, 600)["tokens"][:, 0] for step in range(3)])
    assert set(firsts.tolist()) == {256, *range(1, len(shards.train) - 4)}


def test_validation_covers_the_held_out_tokens_once(folder, packing):
    shards = source(folder, packing=packing)
    batches = list(val_loader(shards, shards.settings))
    targets = torch.cat([b["targets"] for b in batches])
    held = shards.validation.read(0, len(shards.validation))
    header = shards.folder.header["validation"]
    answers = targets[targets != -100]
    if packing:
        assert len(answers) == header["tokens"] - header["documents"]
        assert sorted(answers.tolist()) == sorted(held[held != 256].tolist())
        assert all(set(b) == {"tokens", "targets", "mask", "documents"} for b in batches)
    else:
        whole = (len(held) - 1) // 16 * 16
        assert sorted(answers.tolist()) == sorted(held[1 : whole + 1].tolist())
    assert int((targets == -100).all(dim=1).sum()) < 12


def test_bits_per_byte_are_those_of_the_text(folder, packing):
    """A model that gives every token the same probability needs log2(V) bits a target."""
    shards = source(folder, packing=packing)
    header = shards.folder.header["validation"]
    targets = header["tokens"] - (header["documents"] if packing else 0)
    nats = targets * math.log(257)
    bits_per_byte = nats / targets / math.log(2) / shards.bytes_per_token
    assert bits_per_byte == pytest.approx(nats / math.log(2) / header["bytes"])


@pytest.mark.parametrize(("world", "accumulate"), [(1, 1), (2, 3), (12, 1)])
def test_every_split_of_a_step_holds_the_same_sequences(folder, packing, world, accumulate):
    shards = source(folder, packing=packing)
    parts = [StepDataset(shards, 12, accumulate, rank, world) for rank in range(world)]
    for step in (4, 9):
        pieces = [parts[rank][step * accumulate + micro] for micro in range(accumulate) for rank in range(world)]
        assert torch.equal(rows(pieces), rows([shards.train_batch(step, 0, 12)]))
        assert sum(int((p["targets"] != -100).sum()) for p in pieces) == shards.targets_in_step(step)


def test_workers_and_a_start_in_the_middle_change_nothing(folder, packing):
    shards = source(folder, packing=packing)
    whole = rows(train_loader(shards, shards.settings, 0, 8))
    assert torch.equal(whole, rows(train_loader(shards, shards.settings, 0, 8, workers=2)))
    assert torch.equal(whole[5 * 12 :], rows(train_loader(source(folder, packing=packing), shards.settings, 5, 8)))


def test_seeds_and_steps_differ_and_validation_does_not(folder, packing):
    one, other = source(folder, 0, packing=packing), source(folder, 1, packing=packing)
    first = rows([one.train_batch(0, 0, 12)])
    assert not torch.equal(first, rows([one.train_batch(1, 0, 12)]))
    assert not torch.equal(first, rows([other.train_batch(0, 0, 12)]))
    assert torch.equal(rows([one.val_batch(0, 0, 12)]), rows([other.val_batch(0, 0, 12)]))


def test_every_epoch_of_packed_rows_deals_out_each_row_once_in_a_new_order(folder):
    shards = source(folder, packing=True)
    number = len(shards._packed[0])
    dealt = np.concatenate([shards._dealt(step, 0, 12) for step in range(3 * number // 12 + 1)])
    epochs = [dealt[e * number : (e + 1) * number].tolist() for e in range(3)]
    assert all(sorted(epoch) == list(range(number)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert shards._dealt(0, 0, 12).tolist() == epochs[0][:12]  # back in an order that was dropped


def test_constants_name_what_is_behind_the_results(folder):
    constants = source(folder, packing=True).constants()
    assert constants["data/train_documents"] + constants["data/validation_documents"] == 60
    assert 0.9 < constants["data/packing_fill"] <= 1
    assert "data/packing_fill" not in source(folder).constants()


def test_text_form(folder):
    shards = source(folder)
    assert shards.vocab_size == 257
    assert shards.encode("é") == [256, *"é".encode()]
    assert shards.decode(shards.encode("é 語")) == "é 語"


def test_tokens_of_a_vocabulary_train_without_the_library(tmp_path, monkeypatch):
    pytest.importorskip("tokenizers")
    (tmp_path / "text").write_text("some words, some more words\n" * 100)
    train_bpe([tmp_path / "text"], 280, tmp_path / "bpe.json")
    prepare([tmp_path / "text"], tmp_path / "tokens", tmp_path / "bpe.json", 0.3)
    text = "some more words"
    assert source(tmp_path / "tokens").decode(source(tmp_path / "tokens").encode(text)) == text
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    shards = source(tmp_path / "tokens")
    assert 257 < shards.vocab_size <= 280
    assert shards.bytes_per_token > 2
    shards.train_batch(0, 0, 12)
    with pytest.raises(UserError, match="needs the library 'tokenizers'"):
        shards.encode(text)


def test_the_fingerprint_follows_the_tokens(folder, tmp_path):
    (tmp_path / "text").write_text("other " * 100)
    prepare([tmp_path / "text"], tmp_path / "tokens", None, 0.3)
    assert source(folder).fingerprint() == source(folder, seed=3).fingerprint()
    assert source(folder).fingerprint() != source(tmp_path / "tokens").fingerprint()


def test_too_short_a_side_and_a_missing_folder(folder, tmp_path):
    with pytest.raises(UserError, match=r"data.seq_len=5000: the training side of .* has \d+ tokens and must have"):
        source(folder, seq_len=5000)
    with pytest.raises(UserError, match=r"/tokns: no such folder; did you mean 'tokens'"):
        source(folder.with_name("tokns"))
    with pytest.raises(UserError, match=r"data.path=null: must be a folder made by `k3lab data prepare`"):
        Shards(ShardsSettings(), 0).prepare()


def test_verify_reads_every_file(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    file = copy / "train-00000.bin"
    content = bytearray(file.read_bytes())
    content[7] ^= 1
    file.write_bytes(content)
    source(copy)
    with pytest.raises(UserError, match=r"train-00000.bin is damaged"):
        source(copy, verify=True)


def test_settings(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert ShardsSettings(path="tokens").path == str(folder)
    assert ShardsSettings(path="tokens").vocab_size == 257
    assert ShardsSettings(path="texts").vocab_size is None
    trainer = SimpleNamespace(devices=1, accumulate=5)
    config = SimpleNamespace(trainer=trainer, model=SimpleNamespace(vocab_size=256))
    with pytest.raises(ValueError, match=r"data.path=null: must be a folder made by"):
        ShardsSettings().check(config)
    with pytest.raises(ValueError, match=r"data.batch_size=16: must be a multiple of .*=5"):
        ShardsSettings(path="tokens").check(config)
    with pytest.raises(ValueError, match=r"model.vocab_size=256: must be at least 257, the token ids of /"):
        ShardsSettings(path="tokens", batch_size=5).check(config)
    with pytest.raises(ValueError, match="seq_len=0: must be positive"):
        ShardsSettings(seq_len=0)


@pytest.mark.parametrize("name", ["shards", "hub"])
def test_the_yaml_says_the_defaults(name):
    plain = yaml.safe_load((conf_dir() / "data" / f"{name}.yaml").read_text())
    assert next(iter(plain)) == "name"
    cls = settings_class("data", name)
    assert cls(**plain) == cls()
    assert set(plain) == set(cls.__dataclass_fields__)
