"""data=mqar: every answer derived again from the tokens alone, and the definition's distributions."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from k3lab.config.errors import UserError
from k3lab.config.registry import conf_dir
from k3lab.data.mqar import MQAR, MQARSettings, _distinct


def check_sequence(tokens, targets, pairs, vocab_size):
    """Re-derive the answers by reading left to right, as a reader with a dictionary would."""
    half = vocab_size // 2
    context = 2 * pairs
    keys, values = tokens[0:context:2], tokens[1:context:2]
    assert len(set(keys)) == len(set(values)) == pairs
    assert all(1 <= k < half for k in keys)
    assert all(half <= v < vocab_size for v in values)
    known = dict(zip(keys, values, strict=True))
    asked = [i for i, target in enumerate(targets) if target != -100]
    assert all(i >= context and i % 2 == 0 for i in asked)
    assert [targets[i] for i in asked] == [known[tokens[i]] for i in asked]
    assert sorted(tokens[i] for i in asked) == sorted(keys)
    assert all(0 <= t < vocab_size for t in tokens)


@pytest.mark.parametrize(
    ("length", "pairs", "vocab_size"),
    [(4, 1, 4), (16, 4, 10), (64, 8, 512), (64, 16, 8192), (256, 64, 8192), (1024, 31, 64)],
)
@pytest.mark.parametrize("fill", [True, False])
def test_answers_by_brute_force(length, pairs, vocab_size, fill):
    settings = MQARSettings(
        seq_len=length, num_kv_pairs=pairs, vocab_size=vocab_size, batch_size=16, random_fill=fill, val_examples=16
    )
    mqar = MQAR(settings, seed=1)
    for batch in (mqar.train_batch(2, 0, 16), mqar.val_batch(0, 0, 16)):
        assert batch["tokens"].shape == batch["targets"].shape == (16, length)
        for tokens, targets in zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True):
            check_sequence(tokens, targets, pairs, vocab_size)
            if not fill:
                asked = sum(t != -100 for t in targets)
                assert sum(t == 0 for t in tokens) == length - 2 * pairs - asked
    assert mqar.targets_in_step(2) == 16 * pairs


def test_mixed_sizes_are_padded_masked_and_counted():
    settings = MQARSettings(
        seq_len=64, vocab_size=128, batch_size=48, train_lengths=[16, 32, 64], train_pairs=[2, 8, 5], val_seq_len=128
    )
    mqar = MQAR(settings, seed=0)
    pairs_of = dict(settings.train_sizes())
    seen = set()
    for step in range(3):
        batch = mqar.train_batch(step, 0, 48)
        assert int((batch["targets"] != -100).sum()) == mqar.targets_in_step(step)
        for tokens, targets, mask in zip(batch["tokens"], batch["targets"], batch["mask"], strict=True):
            length = int(mask.sum())
            assert mask[:length].all()
            assert not tokens[length:].any()
            assert (targets[length:] == -100).all()
            check_sequence(tokens[:length].tolist(), targets[:length].tolist(), pairs_of[length], 128)
            seen.add(length)
    assert seen == {16, 32, 64}
    assert len({mqar.targets_in_step(step) for step in range(10)}) > 1
    assert mqar.val_batch(0, 0, 4)["tokens"].shape == (4, 128)


def test_the_validation_set_is_its_own_finite_and_independent_of_the_batch_size():
    def whole(batch_size):
        mqar = MQAR(MQARSettings(batch_size=batch_size, val_examples=50), seed=9)
        batches = [mqar.val_batch(i, 0, batch_size) for i in range(mqar.val_batches_available())]
        real = torch.cat([b["targets"] for b in batches]).ne(-100).any(dim=1)
        return torch.cat([b["tokens"] for b in batches])[real]

    assert torch.equal(whole(8), whole(32))
    assert len(whole(8)) == 50
    mqar = MQAR(MQARSettings(batch_size=64, vocab_size=8192), seed=0)
    train = {tuple(row) for step in range(20) for row in mqar.train_batch(step, 0, 64)["tokens"][:, :16].tolist()}
    assert len(train) == 20 * 64
    assert not train & {tuple(row[:16]) for row in mqar.val_batch(0, 0, 64)["tokens"].tolist()}


@pytest.mark.parametrize("power", [0.01, 0.5, 1.0])
def test_gaps_follow_the_power_law(power):
    """First query of a sequence with one pair: P(slot s) ∝ s^(a−1)."""
    mqar = MQAR(MQARSettings(seq_len=34, num_kv_pairs=1, batch_size=4000, power_a=power, vocab_size=64), seed=0)
    targets = mqar.train_batch(0, 0, 4000)["targets"]
    slots = ((targets != -100).int().argmax(dim=1) - 2) // 2
    counts = np.bincount(slots.numpy(), minlength=16)
    p = np.arange(1, 17) ** (power - 1.0)
    expected = 4000 * p / p.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 45  # χ², 15 degrees of freedom: p ≈ 8e-5


def test_several_gaps_are_a_weighted_draw_without_replacement():
    """The pair that is stated first is queried as numpy's own weighted choice would place it."""
    pairs, slots = 4, 12
    mqar = MQAR(MQARSettings(seq_len=32, num_kv_pairs=pairs, batch_size=3000, vocab_size=64), seed=3)
    batch = mqar.train_batch(0, 0, 3000)
    p = np.arange(1, slots + 1) ** (0.01 - 1.0)
    generator = np.random.default_rng(0)
    drawn = np.array([generator.choice(slots, pairs, replace=False, p=p / p.sum()) for _ in range(3000)])
    asked = batch["targets"] != -100
    for n in range(pairs):
        own = asked & (batch["tokens"] == batch["tokens"][:, 2 * n : 2 * n + 1])
        mean = float(((own.int().argmax(dim=1) - 2 * pairs) // 2).float().mean())
        assert abs(mean - drawn[:, n].mean()) < 5 * 3.5 * math.sqrt(2 / 3000)


def test_distinct_numbers_are_uniform_in_every_place():
    generator = np.random.default_rng(0)
    drawn = _distinct(generator.random((6000, 3)), generator.random((6000, 3)), 5)
    assert all(len(set(row)) == 3 for row in drawn.tolist())
    triples = np.unique(drawn, axis=0, return_counts=True)[1]
    assert len(triples) == 60
    assert ((triples - 100) ** 2 / 100).sum() < 110  # χ², 59 degrees of freedom: p ≈ 6e-5


@pytest.mark.parametrize(("seq_len", "vocab_size", "pairs"), [(256, 8192, 64), (64, 16, 7), (6, 8, 1)])
def test_as_many_pairs_as_fit(seq_len, vocab_size, pairs):
    settings = MQARSettings(seq_len=seq_len, vocab_size=vocab_size, num_kv_pairs=None)
    assert settings.num_kv_pairs == pairs
    assert MQAR(settings, 0).targets_in_step(0) == pairs * settings.batch_size


def test_text_form():
    mqar = MQAR(MQARSettings(), seed=0)
    assert mqar.bytes_per_token is None
    assert mqar.encode("3 300  7") == [3, 300, 7]
    assert mqar.decode([3, 300, 7]) == "3 300 7"
    with pytest.raises(UserError, match="prompt=hello: data=mqar takes token numbers"):
        mqar.encode("hello")
    with pytest.raises(UserError, match=r"token 512 must lie in \[0, 511\]"):
        mqar.encode("512")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_kv_pairs": 17}, r"num_kv_pairs=17: must lie in \[1, 16\]: 4 × pairs ≤ seq_len=64"),
        ({"vocab_size": 16}, r"num_kv_pairs=8: must lie in \[1, 7\].* vocab_size/2=8"),
        ({"vocab_size": 17}, "vocab_size=17: must be an even number"),
        ({"seq_len": 63}, "seq_len=63: must be an even number"),
        ({"power_a": 0.0}, r"power_a=0.0: must lie in \(0, 1\]"),
        ({"val_seq_len": 16}, r"num_kv_pairs=8: must lie in \[1, 4\]: 4 × pairs ≤ val_seq_len=16"),
        ({"val_num_kv_pairs": 20}, r"val_num_kv_pairs=20: must lie in \[1, 16\]"),
        ({"val_seq_len": 0}, "val_seq_len=0: must be positive"),
        ({"val_examples": 0}, "val_examples=0: must be positive"),
        ({"train_lengths": [16]}, r"train_lengths=\[16\]: must be as many numbers as train_pairs=None"),
        ({"train_lengths": [], "train_pairs": []}, r"train_lengths=\[\]: must be as many"),
        ({"train_lengths": [16, 32], "train_pairs": [2]}, "must be as many numbers"),
        ({"train_lengths": [128], "train_pairs": [2]}, r"train_lengths=\[128\]: must be at most seq_len=64"),
        ({"train_lengths": [16], "train_pairs": [5]}, r"train_pairs=5: must lie in \[1, 4\]"),
    ],
)
def test_wrong_settings(wrong, message):
    with pytest.raises(ValueError, match=message):
        MQARSettings(**wrong)


def test_what_other_groups_must_allow():
    def config(vocab_size, devices=1):
        trainer = SimpleNamespace(devices=devices, accumulate=3)
        return SimpleNamespace(trainer=trainer, model=SimpleNamespace(vocab_size=vocab_size))

    MQARSettings(batch_size=12).check(config(512))
    MQARSettings(batch_size=12).check(config(None, devices=4))
    with pytest.raises(ValueError, match=r"model.vocab_size=511: must be at least data.vocab_size=512"):
        MQARSettings(batch_size=12).check(config(511))
    with pytest.raises(ValueError, match=r"data.batch_size=32: must be a multiple"):
        MQARSettings(batch_size=32).check(config(None))


def test_the_yaml_says_the_defaults():
    plain = yaml.safe_load((conf_dir() / "data" / "mqar.yaml").read_text())
    assert next(iter(plain)) == "name"
    assert MQARSettings(**plain) == MQARSettings()
