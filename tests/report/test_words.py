import math

import pytest

from k3lab.report import words
from k3lab.report.analysis import Difference
from k3lab.report.arms import Arm
from k3lab.report.stats import Estimate
from k3lab.tracking import names

ARM = Arm({}, [])


def verdict(name: str, mean: float, half: float | None, n: int = 3, paired: bool = True) -> str:
    return words.verdict(Difference(ARM, name, Estimate(mean, half, n), paired, ("0",)))


@pytest.mark.parametrize(
    ("name", "mean", "half", "expected"),
    [
        (names.VAL_LOSS, -0.0213, 0.0062, "better by 0.021 ± 0.006 nats"),
        (names.VAL_LOSS, 0.0213, 0.0062, "worse by 0.021 ± 0.006 nats"),
        (names.VAL_LOSS, 0.0034, 0.0101, "no difference at this size (+0.003 ± 0.010 nats)"),
        (names.VAL_LOSS, 0.0, 0.0, "identical in every seed"),
        (names.VAL_ACCURACY, 0.0213, 0.0062, "better by 2.1 ± 0.6 percentage points"),
        (names.VAL_ACCURACY, -0.0213, 0.0062, "worse by 2.1 ± 0.6 percentage points"),
        (names.BALANCE_MAX_VIO, -0.5, 0.1, "better by 0.50 ± 0.10"),
        (names.PERF_TOKENS_PER_S, -1234.5, 35.0, "worse by 1\u202f234 ± 35 tokens/s"),
        (names.DECAY_HALF_LIFE_MEDIAN, 12.0, 4.0, "higher by 12 ± 4 tokens"),
        ("my/metric", -2.0, 0.3, "lower by 2.0 ± 0.3"),
    ],
)
def test_verdicts_know_the_good_direction(name: str, mean: float, half: float, expected: str) -> None:
    assert verdict(name, mean, half) == expected


def test_one_seed_gives_no_verdict() -> None:
    assert verdict(names.VAL_LOSS, -0.02134, None, 1) == "one seed: no verdict (−0.02134 nats)"
    assert verdict(names.VAL_LOSS, math.nan, None, 0) == "no values to compare"
    assert "unpaired" in verdict(names.VAL_LOSS, -0.5, 0.1, paired=False)


@pytest.mark.parametrize(("half", "places"), [(0.0062, 3), (0.0123, 3), (0.3, 1), (0.25, 2), (35, 0), (0, 3)])
def test_decimals_follow_the_interval(half: float, places: int) -> None:
    assert words.decimals(half) == places


def test_numbers() -> None:
    assert words.number(1.52345) == "1.523"
    assert words.number(-12345.6) == "−12\u202f346"
    assert words.number(math.nan) == "—"
    assert words.number(math.inf) == "∞"
    assert words.number(0) == "0"
    assert words.number(1.5e-7) == "1.500e−07"
    assert words.plus_minus(Estimate(0.079, 1e-17, 3)) == "0.07900 ± 0.00000"
    assert words.plus_minus(Estimate(-0.04, 0.3, 3), signed=True) == "0.0 ± 0.3"
    assert words.plus_minus(Estimate(1.5234, 0.0123, 3), digits=2) == "1.523 ± 0.012"
    assert words.magnitude(2.2e6) == "2.2 M"
    assert words.magnitude(12) == "12"
    assert words.duration(42) == "42 s"
    assert words.duration(600) == "10.0 min"
    assert words.listing(["a", "b", "c"]) == "a, b and c"
    assert words.listing("abcd", most=3) == "a, b and 2 more"


def test_effects_in_words() -> None:
    assert words.effect(Estimate(-0.02, 0.005, 3), names.VAL_LOSS) == "lowers it by 0.020 ± 0.005 nats (better)"
    assert words.effect(Estimate(0.001, 0.005, 3), names.VAL_LOSS).startswith("no effect at this size")
    assert words.effect(Estimate(2.0, 0.5, 3), names.DECAY_HALF_LIFE_MEDIAN) == "raises it by 2.0 ± 0.5 tokens"
    assert words.effect(Estimate(2.0, None, 1), names.VAL_LOSS).startswith("one seed: no verdict")
