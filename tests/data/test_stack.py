"""data=stack: every sequence replayed on real stacks."""

from collections import Counter

import pytest
import torch

from k3lab.data.stack import Stack, StackSettings


def replay(tokens, targets, stacks, elements):
    """Run the operations on lists; returns the number of pops and how deep the stacks became."""
    memory = [[] for _ in range(stacks)]
    asked = deepest = 0
    for at in range(0, len(tokens), 3):
        operation = tokens[at : at + 3]
        assert operation[0] in (0, 1)
        assert targets[at] == -100
        if len(operation) == 1:
            break
        which = operation[1] - 2
        assert 0 <= which < stacks
        if operation[0] == 1:
            expected = memory[which].pop()  # raises if the stack is empty
            assert targets[at + 1] == expected
            asked += 1
        else:
            assert targets[at + 1] == -100
        if len(operation) == 3:
            assert targets[at + 2] == -100
            assert 2 + stacks <= operation[2] < 2 + stacks + elements
            if operation[0] == 1:
                assert operation[2] == expected
            else:
                memory[which].append(operation[2])
                deepest = max(deepest, len(memory[which]))
    return asked, deepest


@pytest.mark.parametrize(
    ("length", "stacks", "elements"), [(6, 1, 2), (7, 2, 3), (8, 2, 3), (64, 4, 16), (256, 64, 30), (512, 3, 5)]
)
def test_answers_by_brute_force(length, stacks, elements):
    settings = StackSettings(seq_len=length, stacks=stacks, elements=elements, batch_size=16, val_examples=16)
    source = Stack(settings, seed=1)
    for step in range(2):
        batches = source.train_batch(step, 0, 16), source.val_batch(0, 0, 16)
        totals = []
        for batch in batches:
            found = [
                replay(tokens, targets, stacks, elements)
                for tokens, targets in zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True)
            ]
            totals.append(sum(asked for asked, _ in found))
        assert totals[0] == source.targets_in_step(step)


def test_stacks_grow_and_pops_are_nearly_half():
    source = Stack(StackSettings(seq_len=300, stacks=4, batch_size=64), seed=0)
    batch = source.train_batch(0, 0, 64)
    replayed = [
        replay(tokens, targets, 4, 16)
        for tokens, targets in zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True)
    ]
    assert 0.4 < sum(asked for asked, _ in replayed) / (64 * 100) < 0.5
    assert max(deepest for _, deepest in replayed) >= 5


def test_pushes_and_pops_go_to_every_stack_alike():
    source = Stack(StackSettings(seq_len=90, stacks=4, batch_size=400), seed=0)
    tokens = source.train_batch(0, 0, 400)["tokens"].view(400, -1, 3)
    for operation in (0, 1):
        chosen = tokens[tokens[..., 0] == operation][:, 1] - 2
        counts = torch.bincount(chosen, minlength=4)
        assert counts.max() / counts.min() < 1.15


def test_two_operations_are_all_equally_likely():
    """With one stack and two elements a sequence of two operations has 2 pushes, then a push or a pop."""
    source = Stack(StackSettings(seq_len=6, stacks=1, elements=2, batch_size=4000), seed=0)
    seen = Counter(map(tuple, source.train_batch(0, 0, 4000)["tokens"].tolist()))
    assert len(seen) == 2 * 2 + 2
    for sequence, count in seen.items():
        expected = 4000 / 2 / (2 if sequence[3] == 1 else 4)
        assert abs(count - expected) < 5 * expected**0.5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seq_len": 5}, "seq_len=5: must be at least 6"),
        ({"val_seq_len": 5}, "val_seq_len=5: must be at least 6"),
        ({"stacks": 0}, "stacks=0: must be positive"),
        ({"elements": 1}, "elements=1: must be at least 2"),
    ],
)
def test_wrong_settings(wrong, message):
    with pytest.raises(ValueError, match=message):
        StackSettings(**wrong)
