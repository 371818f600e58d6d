"""data=state_tracking: the answers by applying permutations to a list."""

from itertools import permutations

import pytest
import torch

from k3lab.data.state_tracking import StateTracking, StateTrackingSettings, products


@pytest.mark.parametrize(("group", "size"), [("s3", 3), ("s5", 5)])
def test_answers_by_brute_force(group, size):
    source = StateTracking(StateTrackingSettings(group=group, seq_len=12, val_seq_len=40, val_beyond=False), seed=1)
    elements = list(permutations(range(size)))
    assert source.vocab_size == len(elements)
    for batch in (source.train_batch(2, 0, 8), source.val_batch(0, 0, 8)):
        for tokens, targets in zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True):
            places = list(range(size))  # where each thing is after the permutations so far
            for token, target in zip(tokens, targets, strict=True):
                places = [elements[token][place] for place in places]
                assert elements[target] == tuple(places)
    assert source.targets_in_step(2) == 64 * 12


@pytest.mark.parametrize("group", ["s3", "s5"])
def test_the_table_is_a_group_that_does_not_commute(group):
    table = products(group)
    size = len(table)
    for line in (*table, *table.T):
        assert sorted(line.tolist()) == list(range(size))
    a, b, c = torch.randint(size, (3, 200), generator=torch.Generator().manual_seed(0)).numpy()
    assert (table[table[a, b], c] == table[a, table[b, c]]).all()
    assert (table[0] == range(size)).all()  # the first in lexicographic order changes nothing
    assert (table != table.T).any()


def test_validation_scores_only_what_lies_beyond_training():
    source = StateTracking(StateTrackingSettings(seq_len=12, val_seq_len=40), seed=1)
    scored = source.val_batch(0, 0, 8)["targets"] != -100
    assert not scored[:, :12].any()
    assert scored[:, 12:].all()


def test_an_unknown_group_names_the_nearest():
    with pytest.raises(ValueError, match="group=s4: must be one of s3, s5"):
        StateTrackingSettings(group="s4")
