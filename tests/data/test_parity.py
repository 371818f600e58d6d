"""data=parity: the answers counted again, and validation beyond training's length."""

import torch

from k3lab.data.parity import Parity, ParitySettings


def test_answers_by_brute_force():
    source = Parity(ParitySettings(seq_len=24, batch_size=16, val_seq_len=100, val_beyond=False), seed=1)
    for batch in (source.train_batch(2, 0, 16), source.val_batch(0, 0, 16)):
        for tokens, targets in zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True):
            assert set(tokens) <= {0, 1}
            assert targets == [tokens[: t + 1].count(1) % 2 for t in range(len(tokens))]
    assert source.targets_in_step(2) == 16 * 24


def test_validation_scores_only_what_lies_beyond_training():
    source = Parity(ParitySettings(seq_len=24, batch_size=16, val_seq_len=100), seed=1)
    whole = Parity(ParitySettings(seq_len=24, batch_size=16, val_seq_len=100, val_beyond=False), seed=1)
    batch, full = source.val_batch(0, 0, 16), whole.val_batch(0, 0, 16)
    assert torch.equal(batch["tokens"], full["tokens"])
    assert (batch["targets"][:, :24] == -100).all()
    assert torch.equal(batch["targets"][:, 24:], full["targets"][:, 24:])


def test_validation_no_longer_than_training_is_scored_whole():
    for length in (None, 24, 10):
        source = Parity(ParitySettings(seq_len=24, val_seq_len=length), seed=1)
        assert (source.val_batch(0, 0, 16)["targets"] != -100).all()


def test_answers_are_even():
    source = Parity(ParitySettings(), seed=0)
    answers = source.train_batch(0, 0, 64)["targets"].double()
    assert abs(answers.mean() - 0.5) < 0.05
    assert abs(answers[:, -1].mean() - 0.5) < 0.3
