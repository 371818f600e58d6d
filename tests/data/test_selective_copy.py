"""data=selective_copy: the answers are the content tokens in the order of the text."""

import pytest
import torch

from k3lab.data.selective_copy import SelectiveCopy, SelectiveCopySettings


@pytest.mark.parametrize(
    ("length", "copies", "vocab_size", "noise"), [(2, 1, 4, 1), (64, 8, 16, 1), (64, 32, 40, 9), (256, 16, 16, 1)]
)
def test_answers_by_brute_force(length, copies, vocab_size, noise):
    settings = SelectiveCopySettings(
        seq_len=length, copies=copies, vocab_size=vocab_size, noise_tokens=noise, batch_size=16, val_examples=16
    )
    source = SelectiveCopy(settings, seed=1)
    for batch in (source.train_batch(2, 0, 16), source.val_batch(0, 0, 16)):
        for tokens, targets in zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True):
            shown, markers = tokens[: length - copies], tokens[length - copies :]
            assert markers == [0] * copies
            assert all(1 <= t < vocab_size for t in shown)
            content = [t for t in shown if t > noise]
            assert len(content) == copies
            assert targets == [-100] * (length - copies) + content
    assert source.targets_in_step(2) == 16 * copies


def test_content_and_noise_go_everywhere():
    source = SelectiveCopy(SelectiveCopySettings(seq_len=20, copies=4, vocab_size=8, noise_tokens=3), seed=0)
    tokens = torch.cat([source.train_batch(step, 0, 32)["tokens"] for step in range(50)])[:, :16]
    share = (tokens > 3).double().mean(dim=0)
    assert (share - 0.25).abs().max() < 5 * (0.25 * 0.75 / 1600) ** 0.5
    assert set(tokens.unique().tolist()) == set(range(1, 8))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seq_len": 15}, "seq_len=15: must be at least 2 × copies = 16"),
        ({"val_seq_len": 15}, "val_seq_len=15: must be at least 2 × copies = 16"),
        ({"noise_tokens": 14}, r"vocab_size=16: must be at least noise_tokens \+ 3 = 17"),
        ({"noise_tokens": 0}, "noise_tokens=0: must be positive"),
        ({"copies": 0}, "copies=0: must be positive"),
    ],
)
def test_wrong_settings(wrong, message):
    with pytest.raises(ValueError, match=message):
        SelectiveCopySettings(**wrong)
