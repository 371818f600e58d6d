"""Effects of a 2³ that is known by construction, and one worked out by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k3lab.report import factorial
from k3lab.tracking import names
from tests.report import synthetic

SEEDS = (0.0, 0.03, -0.02)


def value(on: tuple[bool, ...], seed: int) -> float:
    decay, router, residual = on
    return 1.5 - 0.02 * decay + 0.01 * router - 0.03 * residual + 0.012 * (decay and residual) + SEEDS[seed]


def effects(found: Any) -> tuple[dict[tuple[str, ...], Any], Any]:
    design = factorial.design(found)
    assert design is not None
    result = factorial.effects(found, design, names.VAL_LOSS)
    assert result is not None
    return {tuple(s.key for s in subset): e for subset, e in result.by_subset.items()}, result


def test_known_effects_come_back_exactly(tmp_path: Path, analyses: Callable[..., Any]) -> None:
    synthetic.factorial(tmp_path / "lab", value)
    (found,) = analyses()
    assert found.baseline.short == "softplus\u00a0· sign_bias\u00a0· prenorm"
    by_key, result = effects(found)
    assert by_key[("decay",)].mean == pytest.approx(-0.02 + 0.006)  # averaged over residual off and on
    assert by_key[("router",)].mean == pytest.approx(0.01)
    assert by_key[("residual",)].mean == pytest.approx(-0.03 + 0.006)
    assert by_key[("decay", "residual")].mean == pytest.approx(0.012)
    assert by_key[("decay", "router")].mean == pytest.approx(0, abs=1e-12)
    assert by_key[("decay", "router", "residual")].mean == pytest.approx(0, abs=1e-12)
    assert result.surplus.mean == pytest.approx(0.012)
    assert result.freedom == 14
    assert all(e.half == pytest.approx(0, abs=1e-9) for e in by_key.values())
    # Seeds move every arm alike, so pairs cancel them although the arms' own intervals are wide.
    last = found.differences[names.VAL_LOSS][-1]
    assert last.estimate.mean == pytest.approx(-0.028)
    assert last.judgement == "better"
    assert found.estimate(found.arms[0], names.VAL_LOSS).half > 0.05
    order = [[arm.config[k] == v[1] for k, v in synthetic.OPTIONS.items()] for arm in found.stratum.arms]
    assert [sum(on) for on in order] == [0, 1, 1, 1, 2, 2, 2, 3]
    assert order[1] == [True, False, False]


def test_two_by_two_by_hand(tmp_path: Path, analyses: Callable[..., Any]) -> None:
    table = {"ab": (1.0, 1.2), "Ab": (0.9, 1.0), "aB": (0.8, 1.1), "AB": (0.4, 0.8)}
    for i, (cell, values) in enumerate(table.items()):
        for seed, final in enumerate(values):
            options = [
                f"decay={'softplus' if cell[0] == 'a' else 'lower_bound'}",
                f"optim.lr={2 if cell[1] == 'B' else 1}e-3",
            ]
            synthetic.write_run(tmp_path / "lab" / f"r{i}{seed}", [*options, f"seed={seed}"], final)
    (found,) = analyses()
    by_key, result = effects(found)
    # Means 1.1, 0.95, 0.95, 0.6: decay ((0.95−1.1)+(0.6−0.95))/2, lr the same, interaction (0.6−0.95)−(0.95−1.1).
    assert by_key[("decay",)].mean == pytest.approx(-0.25)
    assert by_key[("optim.lr",)].mean == pytest.approx(-0.25)
    assert by_key[("decay", "optim.lr")].mean == pytest.approx(-0.2)
    assert result.surplus.mean == pytest.approx(-0.2)
    # Residuals: seeds differ by 0.2, 0.1, 0.3, 0.4, mean 0.25; Σr² = 2·Σ((d−0.25)/2)² = 0.025, 3 degrees of freedom.
    error = (0.025 / 3 / 2) ** 0.5  # of a main effect: Σw² = 4·(1/2)² = 1, two seeds
    assert by_key[("decay",)].half == pytest.approx(3.182446 * error, rel=1e-6)
    assert result.freedom == 3


def test_a_missing_cell_is_named_and_ends_the_factorial(tmp_path: Path, analyses: Callable[..., Any]) -> None:
    synthetic.factorial(tmp_path / "lab", value, 1, skip=[((True, True, False), 0)])
    (found,) = analyses()
    assert factorial.design(found) is None
    assert factorial.missing(found) == ["decay=lower_bound router=quantile residual=prenorm"]


def test_a_missing_seed_leaves_the_others(tmp_path: Path, analyses: Callable[..., Any]) -> None:
    synthetic.factorial(tmp_path / "lab", value, 3, skip=[((True, True, False), 1)])
    (found,) = analyses()
    by_key, result = effects(found)
    assert result.seeds == ("0", "2")
    assert by_key[("router",)].mean == pytest.approx(0.01)


def test_a_factor_with_three_levels_is_averaged_over(tmp_path: Path, analyses: Callable[..., Any]) -> None:
    for i, lr in enumerate(("1e-3", "2e-3", "4e-3")):
        for decay in ("softplus", "lower_bound"):
            for residual in ("prenorm", "block_attnres"):
                final = 1 + 0.1 * i - 0.02 * (decay == "lower_bound") - 0.05 * (residual == "block_attnres")
                synthetic.write_run(
                    tmp_path / "lab" / f"{lr}{decay}{residual}",
                    [f"decay={decay}", f"residual={residual}", f"optim.lr={lr}"],
                    final,
                )
    (found,) = analyses()
    by_key, _ = effects(found)
    assert set(by_key) == {("decay",), ("residual",), ("decay", "residual")}
    assert by_key[("decay",)].mean == pytest.approx(-0.02)
    assert by_key[("residual",)].half is None


def test_one_factor_is_no_factorial(tmp_path: Path, analyses: Callable[..., Any]) -> None:
    for decay in ("softplus", "lower_bound"):
        synthetic.write_run(tmp_path / "lab" / decay, [f"decay={decay}"])
    (found,) = analyses()
    assert factorial.design(found) is None
    assert factorial.missing(found) == []
