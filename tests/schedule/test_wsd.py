"""schedule=wsd: exact values at the corners."""

import math

import pytest
import yaml

from k3lab.config.registry import conf_dir
from k3lab.schedule.wsd import WSD, WSDSettings


def factors(steps, **settings):
    schedule = WSD(WSDSettings(**settings))
    return [schedule.factor(step, steps) for step in range(steps)]


def test_corners_linear():
    f = factors(100, warmup=0.1, decay=0.2, final=0.0, shape="linear")
    assert f[0] == 0.1
    assert f[9] == 1.0
    assert f[10:80] == [1.0] * 70
    assert f[80] == pytest.approx(0.95)
    assert f[89] == pytest.approx(0.5)
    assert f[99] == 0.0


def test_corners_sqrt():
    f = factors(100, warmup=0.0, decay=0.25, final=0.2, shape="sqrt")
    assert f[:75] == [1.0] * 75
    assert f[75] == pytest.approx(1 - 0.8 * math.sqrt(1 / 25))
    assert f[99] == pytest.approx(0.2)


def test_the_constant_part_does_not_depend_on_the_length():
    """A run can be continued from before its decay: the rate up to there is the same."""
    short, long = WSD(WSDSettings(warmup=0.0)), WSD(WSDSettings(warmup=0.0))
    assert [short.factor(s, 100) for s in range(80)] == [long.factor(s, 1000) for s in range(80)]


def test_without_decay_the_rate_stays():
    assert factors(50, warmup=0.0, decay=0.0) == [1.0] * 50


def test_warmup_and_decay_may_fill_the_run():
    f = factors(10, warmup=0.5, decay=0.5, shape="linear")
    assert f == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0])
    assert len(factors(3, warmup=0.5, decay=0.5)) == 3  # both round up
    WSDSettings(warmup=0.7, decay=0.3)
    WSDSettings(warmup=0.1, decay=0.9)


def test_the_last_rate_holds_past_the_end():
    schedule = WSD(WSDSettings(final=0.1))
    assert schedule.factor(100, 100) == schedule.factor(10**6, 100) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"warmup": 1.5}, r"warmup=1.5: must lie in \[0, 1\]"),
        ({"decay": 1.0, "warmup": 0.1}, "decay=1.0: must be at most 1 − warmup = 0.9"),
        ({"final": -0.5}, r"final=-0.5: must lie in \[0, 1\]"),
        ({"shape": "sqr"}, "shape=sqr: must be one of linear, sqrt; did you mean 'sqrt'"),
    ],
)
def test_wrong_settings(wrong, message):
    with pytest.raises(ValueError, match=message):
        WSDSettings(**wrong)


def test_the_yaml_says_the_defaults():
    plain = yaml.safe_load((conf_dir() / "schedule" / "wsd.yaml").read_text())
    assert next(iter(plain)) == "name"
    assert WSDSettings(**plain) == WSDSettings()
