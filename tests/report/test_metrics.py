import math

import numpy as np
import pytest

from k3lab.report.metrics import HIGHER, KNOWN, LOWER, NEUTRAL, main_metric, metric
from k3lab.tracking import names


def test_directions() -> None:
    assert metric(names.VAL_LOSS).better == metric(names.BALANCE_MAX_VIO).better == LOWER
    assert metric(names.VAL_ACCURACY).better == metric(names.PERF_TOKENS_PER_S).better == HIGHER
    assert metric("own/figure").better == metric(names.DECAY_HALF_LIFE_MEDIAN).better == NEUTRAL


def test_a_layer_inherits_from_the_model() -> None:
    one = metric(names.layer(names.BALANCE_MAX_VIO, 3))
    assert one.better == LOWER
    assert one.title.endswith("layer 3")


def test_every_metric_is_explained() -> None:
    assert all(m.meaning.endswith(".") for m in KNOWN.values())


@pytest.mark.parametrize(
    ("name", "until", "expected"),
    [
        (names.VAL_LOSS, 100, 100.0),  # the last
        (names.VAL_LOSS, 55, 50.0),
        (names.TRAIN_LOSS, 100, 100.0),  # mean over steps 91 to 100: one value
        (names.BALANCE_MAX_VIO, 95, 90.0),
        (names.PERF_TOKENS_PER_S, 100, 50.0),  # median of 0, 10 … 100
        (names.PERF_PEAK_MEMORY_GIB, 70, 70.0),
    ],
)
def test_how_values_are_read(name: str, until: int, expected: float) -> None:
    steps = np.arange(0, 101, 10)
    assert metric(name).value(steps, steps.astype(float), until) == expected


def test_noise_is_averaged_over_the_last_tenth() -> None:
    steps = np.arange(1, 101)
    assert metric(names.TRAIN_LOSS).value(steps, steps.astype(float), 100) == np.mean(range(91, 101))
    assert metric(names.TRAIN_LOSS).value(steps, steps.astype(float), 50) == np.mean(range(46, 51))
    assert math.isnan(metric(names.VAL_LOSS).value(steps, steps.astype(float), 0))


def test_a_measurement_before_the_last_tenth_still_counts() -> None:
    assert metric(names.BALANCE_MAX_VIO).value(np.array([0, 50]), np.array([9.0, 2.0]), 90) == 2.0
    assert metric(names.BALANCE_MAX_VIO).value(np.array([0]), np.array([9.0]), 0) == 9.0


def test_the_question_is_loss_for_text_and_accuracy_for_a_task() -> None:
    text = {names.VAL_LOSS, names.VAL_ACCURACY, names.VAL_BITS_PER_BYTE, names.TRAIN_LOSS}
    assert main_metric(text) == names.VAL_LOSS
    assert main_metric(text - {names.VAL_BITS_PER_BYTE}) == names.VAL_ACCURACY
    assert main_metric({names.TRAIN_LOSS}) == names.TRAIN_LOSS
    assert main_metric(set()) is None
