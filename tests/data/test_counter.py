"""Counter-based random numbers: a row does not depend on the rows drawn with it."""

import numpy as np
import pytest

from k3lab.data.counter import SIZES, TRAIN, VALIDATION, uniform


@pytest.mark.parametrize("draws", [1, 3, 4, 5, 130])
def test_any_slice_equals_the_whole(draws):
    whole = uniform(7, TRAIN, 11, 0, 24, draws)
    assert whole.shape == (24, draws)
    for first, count in [(0, 1), (5, 3), (23, 1), (8, 16)]:
        assert np.array_equal(uniform(7, TRAIN, 11, first, count, draws), whole[first : first + count])


def test_seed_stream_and_step_all_matter_and_rows_are_distinct():
    rows = [
        uniform(seed, stream, step, 0, 8, 4)
        for seed in (0, 1, 2**63 - 1)
        for stream in (TRAIN, VALIDATION, SIZES)
        for step in (0, 1, 10**9)
    ]
    flat = np.concatenate(rows).ravel()
    assert len(np.unique(flat)) == flat.size


def test_numbers_are_uniform():
    u = np.concatenate([uniform(3, TRAIN, step, 0, 64, 8).ravel() for step in range(200)])
    assert u.min() >= 0
    assert u.max() < 1
    counts, _ = np.histogram(u, bins=64, range=(0, 1))
    expected = u.size / 64
    assert ((counts - expected) ** 2 / expected).sum() < 120  # χ², 63 degrees of freedom: p ≈ 2e-5


def test_values_are_pinned():
    """A run must be repeatable on another machine and after an update of numpy."""
    pinned = [[0.011546754286331562, 0.24154919656271812], [0.5023796042735054, 0.27760557688455356]]
    assert uniform(0, TRAIN, 0, 0, 2, 2).tolist() == pinned
