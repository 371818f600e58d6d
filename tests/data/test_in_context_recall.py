"""data=in_context_recall: the answers by a reader with a dictionary."""

import pytest

from k3lab.data.in_context_recall import InContextRecall, InContextRecallSettings


@pytest.mark.parametrize(("length", "vocab_size"), [(4, 4), (64, 16), (128, 16), (64, 400), (512, 64)])
def test_answers_by_brute_force(length, vocab_size):
    settings = InContextRecallSettings(seq_len=length, vocab_size=vocab_size, batch_size=16, val_examples=16)
    source = InContextRecall(settings, seed=1)
    half = vocab_size // 2
    for step in range(2):
        asked = []
        for batch in (source.train_batch(step, 0, 16), source.val_batch(0, 0, 16)):
            asked.append(0)
            for tokens, targets in zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True):
                known = {}
                for at in range(0, length, 2):
                    key, value = tokens[at : at + 2]
                    assert 0 <= key < half <= value < vocab_size
                    assert known.get(key, value) == value  # one value a key
                    assert targets[at] == known.get(key, -100)
                    assert targets[at + 1] == -100
                    asked[-1] += key in known
                    known[key] = value
        assert source.targets_in_step(step) == asked[0]


def test_the_dictionary_is_drawn_anew_and_evenly():
    source = InContextRecall(InContextRecallSettings(seq_len=64, vocab_size=8, batch_size=300), seed=0)
    tokens = source.train_batch(0, 0, 300)["tokens"].tolist()
    values = [dict(zip(row[::2], row[1::2], strict=True)).get(0) for row in tokens]
    counts = [values.count(v) for v in range(4, 8)]
    assert sum(counts) > 290
    assert max(counts) - min(counts) < 5 * (300 / 4) ** 0.5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seq_len": 63}, "seq_len=63: must be an even number, at least 4"),
        ({"seq_len": 2}, "seq_len=2: must be an even number, at least 4"),
        ({"val_seq_len": 65}, "val_seq_len=65: must be an even number, at least 4"),
        ({"vocab_size": 15}, "vocab_size=15: must be an even number, at least 4"),
    ],
)
def test_wrong_settings(wrong, message):
    with pytest.raises(ValueError, match=message):
        InContextRecallSettings(**wrong)
