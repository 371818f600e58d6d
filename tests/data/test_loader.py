"""Loaders: the same sequences for every number of workers, devices and micro-batches, from any step."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from k3lab.data.loader import StepDataset, train_loader, val_loader
from k3lab.data.mqar import MQAR, MQARSettings
from k3lab.data.text import Text, TextSettings


@pytest.fixture(params=["text", "mqar", "mqar_mixed"])
def source(request, tmp_path):
    if request.param == "text":
        for name in "abcdef":
            (tmp_path / f"{name}.txt").write_text("".join(f"{name}{i} " for i in range(40)))
        built = Text(TextSettings(path=str(tmp_path), seq_len=8, batch_size=12, validation_fraction=0.3), seed=5)
    elif request.param == "mqar":
        built = MQAR(MQARSettings(seq_len=16, num_kv_pairs=3, vocab_size=32, batch_size=12, val_examples=30), seed=5)
    else:
        sizes = {"train_lengths": [8, 16], "train_pairs": [2, 4], "seq_len": 16, "num_kv_pairs": 4}
        built = MQAR(MQARSettings(**sizes, vocab_size=32, batch_size=12, val_examples=30), seed=5)
    built.prepare()
    return built


def rows(batches):
    """Every sequence of some batches as one tensor of integers, whatever their keys."""
    return torch.cat([torch.cat([batch[key].long() for key in sorted(batch)], dim=1) for batch in batches])


def test_shapes_and_types(source):
    batch = source.train_batch(3, 2, 4)
    for key in ("tokens", "targets"):
        assert batch[key].shape == (4, source.settings.seq_len)
        assert batch[key].dtype == torch.int64
        assert batch[key].is_contiguous()
    assert batch["tokens"].min() >= 0
    assert batch["tokens"].max() < source.vocab_size
    if "mask" in batch:
        assert batch["mask"].dtype == torch.bool
        assert not (batch["targets"][~batch["mask"]] != -100).any()


@pytest.mark.parametrize(("world", "accumulate"), [(1, 1), (1, 3), (2, 1), (2, 3), (4, 3), (12, 1)])
def test_every_split_of_a_step_holds_the_same_sequences(source, world, accumulate):
    whole = source.train_batch(4, 0, 12)
    parts = [StepDataset(source, 12, accumulate, rank, world) for rank in range(world)]
    pieces = [parts[rank][4 * accumulate + micro] for micro in range(accumulate) for rank in range(world)]
    assert torch.equal(rows(pieces), rows([whole]))
    assert sum(int((p["targets"] != -100).sum()) for p in pieces) == source.targets_in_step(4)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_number_of_workers_changes_nothing(source, workers):
    def load(n):
        train = train_loader(source, source.settings, 2, 5, accumulate=2, workers=n)
        val = val_loader(source, source.settings, workers=n)
        return rows(train), rows(val), len(train), len(val)

    alone, several = load(0), load(workers)
    assert torch.equal(alone[0], several[0])
    assert torch.equal(alone[1], several[1])
    assert alone[2:] == several[2:] == (6, source.val_batches_available())


def test_a_start_in_the_middle_reads_on_exactly(source):
    whole = list(train_loader(source, source.settings, 0, 6, accumulate=2))
    rest = list(train_loader(source, source.settings, 4, 6, accumulate=2))
    assert len(rest) == 4
    assert torch.equal(rows(whole[8:]), rows(rest))
    assert len(list(train_loader(source, source.settings, 6, 6))) == 0


def test_steps_and_seeds_differ(source):
    again = type(source)(source.settings, seed=6)
    again.prepare()
    first = source.train_batch(0, 0, 12)
    assert torch.equal(rows([first]), rows([source.train_batch(0, 0, 12)]))
    assert not torch.equal(rows([first]), rows([source.train_batch(1, 0, 12)]))
    assert not torch.equal(rows([first]), rows([again.train_batch(0, 0, 12)]))
    assert torch.equal(rows([source.val_batch(0, 0, 12)]), rows([again.val_batch(0, 0, 12)]))


def test_validation_is_the_same_for_every_split_and_counts_each_sequence_once(source):
    whole = list(val_loader(source, source.settings))
    for world, accumulate in [(2, 1), (3, 2)]:
        loaders = [val_loader(source, source.settings, None, accumulate, r, world) for r in range(world)]
        pieces = [piece for group in zip(*loaders, strict=True) for piece in group]
        assert torch.equal(rows(pieces), rows(whole))
    counted = rows(whole)[(torch.cat([b["targets"] for b in whole]) != -100).any(dim=1)]
    assert len(torch.unique(counted, dim=0)) == len(counted)
    assert len(list(val_loader(source, source.settings, batches=1))) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_the_global_random_numbers_are_left_alone(source, workers):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    rows(train_loader(source, source.settings, 0, 2, workers=workers))
    rows(val_loader(source, source.settings, workers=workers))
    assert torch.equal(before, torch.get_rng_state())


def test_a_batch_that_does_not_divide_is_refused(source):
    with pytest.raises(ValueError, match=r"data.batch_size=12: must be a multiple .* 5 × 1 = 5"):
        train_loader(source, source.settings, 0, 1, world=5)


SIGNALLED = """
import signal, sys, time
from k3lab.data import loader
from k3lab.data.loader import train_loader
from k3lab.data.mqar import MQAR, MQARSettings

signal.signal(signal.SIGTERM, lambda *_: None)
signal.signal(signal.SIGINT, lambda *_: None)
serve = loader._serve_until_the_parent_ends_it
def late(worker):
    time.sleep(worker)
    serve(worker)
loader._serve_until_the_parent_ends_it = late  # the signals come while one of the workers still starts
source = MQAR(MQARSettings(batch_size=4), seed=0)
batches = iter(train_loader(source, source.settings, 0, 400, workers=2))
next(batches)
print("ready", flush=True)
sys.stdin.readline()
print(sum(1 for _ in batches), flush=True)
batches = iter(train_loader(source, source.settings, 0, 100000, workers=2))
next(batches)  # the interpreter ends while its workers live
"""


def test_workers_outlive_signals_to_the_whole_group_and_end_with_the_trainer():
    process = subprocess.Popen(
        [sys.executable, "-c", SIGNALLED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == "ready\n"
    for sent in (signal.SIGINT, signal.SIGTERM):
        os.killpg(process.pid, sent)
    start = time.monotonic()
    out, err = process.communicate("\n", timeout=60)
    assert (out, process.returncode) == ("399\n", 0), err
    assert time.monotonic() - start < 30
    with pytest.raises(ProcessLookupError):  # nothing of the group is left
        os.killpg(process.pid, 0)
