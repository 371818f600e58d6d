import math

import numpy as np
import pytest

from k3lab.report import stats


def test_interval_of_three_seeds_by_hand() -> None:
    # mean 2, s = 1, t(0.975, 2) = 4.3027, half = 4.3027 / √3
    estimate = stats.mean([1.0, 2.0, 3.0])
    assert estimate.mean == 2
    assert estimate.n == 3
    assert estimate.half == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert not estimate.sure
    assert stats.mean([2.0, 2.1, 2.2]).sure


@pytest.mark.parametrize(("freedom", "t"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (14, 2.1448)])
def test_quantiles_of_a_printed_table(freedom: int, t: float) -> None:
    assert stats.quantile(freedom) == pytest.approx(t, abs=5e-5)


def test_one_value_has_no_interval_and_none_has_no_mean() -> None:
    assert stats.mean([5.0]) == (5.0, None, 1)
    assert math.isnan(stats.mean([]).mean)
    assert stats.mean([math.nan, 1.0, math.inf]) == (1.0, None, 1)


def test_welch_by_hand() -> None:
    # s² = 1 and 4, n = 3: variance 5/3; ν = (5/3)² / ((1/3)²/2 + (4/3)²/2) = 50/17
    estimate = stats.welch([1.0, 2.0, 3.0], [3.0, 5.0, 7.0])
    assert estimate.mean == -3
    assert estimate.half == pytest.approx(stats.quantile(50 / 17) * math.sqrt(5 / 3), rel=1e-9)


def test_welch_of_one_value_a_side_has_no_interval() -> None:
    assert stats.welch([1.0], [3.0, 4.0]) == (-2.5, None, 1)


def test_a_contrast_is_free_of_what_seeds_do_to_every_cell() -> None:
    cells = np.array([[1.0, 2.0, 3.0], [1.5, 2.5, 3.5]])  # seeds move by 1, the second cell by 0.5
    pooled = stats.Pooled.of(cells)
    assert pooled.freedom == 2
    assert pooled.contrast(np.array([-1.0, 1.0])) == pytest.approx((0.5, 0.0, 3), abs=1e-12)


def test_a_contrast_of_two_cells_is_their_paired_interval() -> None:
    rng = np.random.default_rng(0)
    cells = rng.normal(size=(2, 5))
    pooled, paired = stats.Pooled.of(cells).contrast(np.array([-1.0, 1.0])), stats.mean(list(cells[1] - cells[0]))
    assert pooled == pytest.approx(paired)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(1)
    hits = [abs((e := stats.mean(list(rng.normal(size=3)))).mean) <= (e.half or 0) for _ in range(2000)]
    assert 0.935 < np.mean(hits) < 0.965


def test_one_seed_pools_nothing() -> None:
    assert stats.Pooled.of(np.array([[1.0], [2.0]])).contrast(np.array([-1.0, 1.0])) == (1.0, None, 1)
