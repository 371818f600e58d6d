"""data=palindrome: the answers read off the tokens."""

import pytest

from k3lab.data.palindrome import Palindrome, PalindromeSettings


@pytest.mark.parametrize(("length", "vocab_size"), [(2, 3), (6, 5), (64, 32), (256, 1000)])
def test_answers_by_brute_force(length, vocab_size):
    settings = PalindromeSettings(seq_len=length, vocab_size=vocab_size, batch_size=16, val_examples=16)
    source = Palindrome(settings, seed=1)
    for batch in (source.train_batch(2, 0, 16), source.val_batch(0, 0, 16)):
        for tokens, targets in zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True):
            sep = tokens.index(0)
            assert sep == length // 2
            word = tokens[:sep]
            assert all(1 <= t < vocab_size for t in word)
            written = tokens[sep + 1 :]
            assert [*written, targets[-1]] == word[::-1]  # what was written so far, and what comes next
            assert targets == [-100] * sep + word[::-1]
    assert source.targets_in_step(2) == 16 * length // 2


def test_every_token_occurs_at_every_place():
    source = Palindrome(PalindromeSettings(seq_len=6, vocab_size=4, batch_size=200), seed=0)
    tokens = source.train_batch(0, 0, 200)["tokens"]
    for place in range(3):
        assert set(tokens[:, place].tolist()) == {1, 2, 3}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seq_len": 7}, "seq_len=7: must be an even number"),
        ({"val_seq_len": 7}, "val_seq_len=7: must be an even number"),
        ({"vocab_size": 2}, "vocab_size=2: must be at least 3"),
    ],
)
def test_wrong_settings(wrong, message):
    with pytest.raises(ValueError, match=message):
        PalindromeSettings(**wrong)
