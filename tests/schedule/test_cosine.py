"""schedule=cosine: exact values at the corners."""

import math

import pytest
import yaml

from k3lab.config.registry import conf_dir
from k3lab.schedule.cosine import Cosine, CosineSettings


def factors(steps, **settings):
    schedule = Cosine(CosineSettings(**settings))
    return [schedule.factor(step, steps) for step in range(steps)]


def test_corners():
    f = factors(111, warmup=0.1, final=0.1)  # 11 updates of warm-up, 100 of descent
    assert f[0] == 1 / 11
    assert f[4] == 5 / 11
    assert f[10] == f[11] == 1.0
    assert f[-1] == pytest.approx(0.1, abs=1e-15)
    assert f[11 + 33] == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 3)) / 2, abs=1e-15)


def test_half_way_is_the_mean():
    f = factors(101, warmup=0.0, final=0.2)
    assert f[0] == 1.0
    assert f[50] == pytest.approx(0.6)
    assert f[100] == pytest.approx(0.2)


def test_it_rises_then_falls():
    f = factors(500, warmup=0.05, final=0.0)
    assert f[:25] == sorted(f[:25])
    assert f[25:] == sorted(f[25:], reverse=True)
    assert min(f) >= 0
    assert max(f) == 1.0


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_short_runs(steps):
    f = factors(steps, warmup=0.01, final=0.1)
    assert f[0] == 1.0
    assert all(0.1 <= x <= 1 for x in f)


def test_the_last_rate_holds_past_the_end():
    schedule = Cosine(CosineSettings(warmup=0.1, final=0.3))
    assert schedule.factor(100, 100) == schedule.factor(10**6, 100) == schedule.factor(99, 100) == pytest.approx(0.3)
    assert Cosine(CosineSettings(warmup=1.0)).factor(10**6, 100) == 1.0


@pytest.mark.parametrize("wrong", [{"warmup": -0.1}, {"warmup": 1.1}, {"final": 2.0}, {"final": -1.0}])
def test_wrong_settings(wrong):
    ((key, value),) = wrong.items()
    with pytest.raises(ValueError, match=rf"{key}={value}: must lie in \[0, 1\]"):
        CosineSettings(**wrong)


def test_the_yaml_says_the_defaults():
    plain = yaml.safe_load((conf_dir() / "schedule" / "cosine.yaml").read_text())
    assert next(iter(plain)) == "name"
    assert CosineSettings(**plain) == CosineSettings()
