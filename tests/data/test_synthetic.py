"""What every synthetic task keeps: pure functions, exact counts, one validation set, settings that match their file."""

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
import yaml

from k3lab.config.errors import UserError
from k3lab.config.registry import component, conf_dir, settings_class
from k3lab.data.loader import StepDataset, val_loader

TASKS = ["palindrome", "stack", "parity", "state_tracking", "selective_copy", "in_context_recall"]


def task(name, seed=5, **settings):
    return component("data", name)(settings_class("data", name)(**settings), seed)


@pytest.fixture(params=TASKS)
def name(request):
    return request.param


def rows(batches):
    return torch.cat([torch.cat([batch[key] for key in sorted(batch)], dim=1) for batch in batches])


def test_shapes_types_and_ranges(name):
    source = task(name)
    batch = source.train_batch(3, 2, 5)
    assert set(batch) == {"tokens", "targets"}
    for tensor in batch.values():
        assert tensor.shape == (5, source.settings.seq_len)
        assert tensor.dtype == torch.int64
        assert tensor.is_contiguous()
    tokens, answers = batch["tokens"], batch["targets"][batch["targets"] != -100]
    for values in (tokens, answers):
        assert values.min() >= 0
        assert values.max() < source.vocab_size
    assert source.bytes_per_token is None
    assert source.val_batch(0, 0, 2)["tokens"].shape == (2, source.val_length())


@pytest.mark.parametrize(("world", "accumulate"), [(1, 1), (2, 3), (4, 1), (12, 1)])
def test_every_split_of_a_step_holds_the_same_sequences_and_the_counted_targets(name, world, accumulate):
    source = task(name, batch_size=12)
    parts = [StepDataset(source, 12, accumulate, rank, world) for rank in range(world)]
    for step in (4, 5, 4):
        pieces = [parts[rank][step * accumulate + micro] for micro in range(accumulate) for rank in range(world)]
        assert torch.equal(rows(pieces), rows([source.train_batch(step, 0, 12)]))
        assert sum(int((p["targets"] != -100).sum()) for p in pieces) == source.targets_in_step(step)


def test_seed_and_step_choose_training_and_nothing_chooses_validation(name):
    source, again, other = task(name), task(name), task(name, seed=6)
    first = rows([source.train_batch(0, 0, 12)])
    assert torch.equal(first, rows([again.train_batch(0, 0, 12)]))
    assert not torch.equal(first, rows([source.train_batch(1, 0, 12)]))
    assert not torch.equal(first, rows([other.train_batch(0, 0, 12)]))
    assert torch.equal(rows([source.val_batch(0, 0, 12)]), rows([other.val_batch(0, 0, 12)]))


def test_the_validation_set_is_finite_distinct_and_cut_in_any_way(name):
    def whole(batch_size):
        source = task(name, batch_size=batch_size, val_examples=50)
        batches = list(val_loader(source, source.settings))
        real = torch.cat([b["targets"] for b in batches]).ne(-100).any(dim=1)
        return rows(batches)[real]

    seen = whole(8)
    assert torch.equal(seen, whole(32))
    assert len(torch.unique(seen, dim=0)) == 50


def test_validation_and_training_share_no_sequence(name):
    source = task(name, seed=0, batch_size=64, val_seq_len=None)
    train = {tuple(row) for step in range(20) for row in source.train_batch(step, 0, 64)["tokens"].tolist()}
    assert len(train) == 20 * 64
    assert not train & {tuple(row) for row in source.val_batch(0, 0, 64)["tokens"].tolist()}


def test_text_form(name):
    source = task(name)
    assert source.encode(" 1 0  1") == [1, 0, 1]
    assert source.decode([1, 0, 1]) == "1 0 1"
    with pytest.raises(UserError, match=f"prompt=hello: data={name} takes token numbers"):
        source.encode("hello")
    top = source.vocab_size
    with pytest.raises(UserError, match=rf"token {top} must lie in \[0, {top - 1}\]"):
        source.encode(str(top))


def test_what_other_groups_must_allow(name):
    def config(vocab_size, devices=1):
        trainer = SimpleNamespace(devices=devices, accumulate=3)
        return SimpleNamespace(trainer=trainer, model=SimpleNamespace(vocab_size=vocab_size))

    settings = settings_class("data", name)(batch_size=12)
    settings.check(config(settings.vocab_size))
    settings.check(config(None, devices=4))
    few = settings.vocab_size - 1
    with pytest.raises(ValueError, match=f"model.vocab_size={few}: must be at least {few + 1}, or null"):
        settings.check(config(few))
    with pytest.raises(ValueError, match=r"data.batch_size=12: must be a multiple of .*=15"):
        settings.check(config(None, devices=5))


@pytest.mark.parametrize("key", ["seq_len", "batch_size", "val_seq_len", "val_examples"])
def test_sizes_are_positive(name, key):
    with pytest.raises(ValueError, match=f"{key}=0: must be positive"):
        settings_class("data", name)(**{key: 0})


def test_the_yaml_says_the_defaults(name):
    plain = yaml.safe_load((conf_dir() / "data" / f"{name}.yaml").read_text())
    assert next(iter(plain)) == "name"
    cls = settings_class("data", name)
    assert cls(**plain) == cls()
    assert set(plain) == set(cls.__dataclass_fields__)


def test_settings_need_no_torch():
    code = (
        "import sys; from k3lab.config.registry import settings_class; "
        f"print([settings_class('data', n)().vocab_size for n in {TASKS}], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[32, 22, 2, 6, 16, 16] False"


def test_a_batch_of_the_published_size_takes_little_time(name):
    source = task(name, seq_len=512, batch_size=128, val_seq_len=None)
    source.train_batch(0, 0, 128)
    began = time.perf_counter()
    source.train_batch(1, 0, 128)
    source.targets_in_step(1)
    assert time.perf_counter() - began < 1.0
