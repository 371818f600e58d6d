"""How runs become arms, arms strata, and which of them count."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k3lab.config.errors import UserError
from k3lab.report import gaps, protocol
from k3lab.report.analysis import analyse, check_baseline, check_metric
from k3lab.report.arms import group, matching, strata
from k3lab.report.collect import collect
from k3lab.report.document import plain
from k3lab.tracking import names
from tests.report.synthetic import write_run


def told(tmp_path: Path, **options: Any) -> str:
    found = collect(["lab"], tmp_path)
    analyses = [analyse(s, options.get("baseline"), options.get("metric")) for s in strata(group(found.runs))]
    notice = gaps.notice(found, analyses)
    return "" if notice is None else "\n".join(plain(item) for item in notice.items)


def test_seeds_and_what_only_watches_make_no_arm(tmp_path: Path, analyses: Callable[..., Any]) -> None:
    lab = tmp_path / "lab"
    write_run(lab / "a", ["seed=0"])
    write_run(lab / "b", ["seed=1", "trainer.log_every=7", "checkpoint.every=3", "trainer.workers=2"])
    write_run(lab / "c", ["seed=0", "decay=softplus"])
    (found,) = analyses()
    assert {a.name: [r.seed for r in a.runs] for a in found.stratum.arms} == {
        "decay=softplus": ["0"],
        "decay=lower_bound": ["0", "1"],
    }


def test_settings_of_an_option_are_compared_within_it(tmp_path: Path, analyses: Callable[..., Any]) -> None:
    lab = tmp_path / "lab"
    write_run(lab / "a", ["decay=softplus"])
    write_run(lab / "b", ["decay.g_min=-5"])
    write_run(lab / "c", ["decay.g_min=-2"])
    write_run(lab / "d", ["mixer=kda", "decay.g_min=-5"])
    (found,) = analyses()
    assert {a.name for a in found.stratum.arms} == {
        "decay=softplus mixer=kda+mla",
        "decay=lower_bound decay.g_min=-5.0 mixer=kda+mla",
        "decay=lower_bound decay.g_min=-2.0 mixer=kda+mla",
        "decay=lower_bound decay.g_min=-5.0 mixer=kda",
    }
    assert len(matching(found.stratum.arms, "mixer=kda")) == 1
    assert len(matching(found.stratum.arms, "decay=lower_bound mixer=kda+mla")) == 2


def test_keys_that_change_together_are_one_factor(tmp_path: Path, analyses: Callable[..., Any]) -> None:
    for i, lr in enumerate(("1e-3", "2e-3")):
        write_run(tmp_path / "lab" / str(i), [f"optim.lr={lr}", f"optim.weight_decay=0.{i + 1}"])
    (found,) = analyses()
    assert [f.key for f in found.stratum.factors] == ["optim.lr"]
    assert found.stratum.aliases == {"optim.lr": ["optim.weight_decay"]}
    assert [a.short for a in found.stratum.arms] == ["lr 0.001", "lr 0.002"]


def test_other_data_is_another_part(tmp_path: Path, analyses: Callable[..., Any]) -> None:
    for task in ("mqar", "palindrome"):
        for decay in ("softplus", "lower_bound"):
            write_run(tmp_path / "lab" / f"{task}{decay}", [f"data={task}", f"decay={decay}"])
    found = analyses(baseline="decay=softplus")
    assert [a.stratum.title for a in found] == ["data=mqar", "data=palindrome"]
    assert all(a.baseline.name == "decay=softplus" and len(a.others) == 1 for a in found)


def test_other_files_behind_equal_settings_are_another_part(tmp_path: Path, analyses: Callable[..., Any]) -> None:
    for seed, data in enumerate(("aaaa", "aaaa", "bbbb")):
        write_run(tmp_path / "lab" / str(seed), [f"seed={seed}"], summary={"data": data})
    assert [len(a.arms[0].runs) for a in analyses()] == [2, 1]


def test_a_rehearsal_is_kept_apart(tmp_path: Path, analyses: Callable[..., Any]) -> None:
    for decay in ("softplus", "lower_bound"):
        write_run(tmp_path / "lab" / decay, [f"decay={decay}"], steps=40)
    write_run(tmp_path / "lab" / "short", ["decay=softplus"], steps=8)
    found = analyses()
    assert [(a.stratum.title, a.step) for a in found] == [("trainer.max_steps=40", 40), ("trainer.max_steps=8", 8)]


def test_arms_of_different_lengths_are_compared_at_the_common_step(
    tmp_path: Path, analyses: Callable[..., Any]
) -> None:
    write_run(tmp_path / "lab" / "a", ["decay=softplus"], steps=40)
    write_run(tmp_path / "lab" / "b", ["decay=lower_bound"], steps=24)  # validated every 3 steps, the other every 5
    (found,) = analyses()
    assert found.step == 15
    run = found.usable["decay=softplus"][0]
    assert run.value(names.VAL_LOSS, 15) == dict(zip(*run.series[names.VAL_LOSS], strict=True))[15]
    assert "compared at step 15" in told(tmp_path)


def test_what_failed_stopped_or_never_ran_is_named(tmp_path: Path, analyses: Callable[..., Any]) -> None:
    lab = tmp_path / "lab"
    for seed in range(3):
        write_run(lab / f"a{seed}", [f"seed={seed}", "decay=softplus"])
    write_run(lab / "b0", ["seed=0"])
    write_run(lab / "b1", ["seed=1"], status="failed", logged=13, summary={"error": "loss is nan\nat step 13"})
    write_run(lab / "c0", ["seed=0", "decay=none"], status="interrupted", logged=20)
    (found,) = analyses()
    assert [a.name for a in found.arms] == ["decay=softplus", "decay=lower_bound"]
    text = told(tmp_path)
    assert "decay=lower_bound, seed 1: left out: it failed after step 13 of 40: loss is nan at step 13." in text
    assert "decay=lower_bound: seed 2 was never run." in text
    assert "decay=none has no result." in text
    assert "decay=none, seed 0: left out: it was interrupted after step 20 of 40." in text
    (difference,) = found.differences[names.VAL_LOSS]
    assert difference.seeds == ("0",)
    assert difference.judgement == "open"


def test_with_nothing_finished_the_unfinished_count(tmp_path: Path, analyses: Callable[..., Any]) -> None:
    write_run(tmp_path / "lab" / "a", ["decay=softplus"], status="interrupted", logged=20)
    write_run(tmp_path / "lab" / "b", [], status="running", logged=25)
    (found,) = analyses()
    assert found.unfinished
    assert found.step == 20
    assert "counts although it was interrupted" in told(tmp_path)


def test_a_seed_that_was_run_again_counts_once(tmp_path: Path, analyses: Callable[..., Any]) -> None:
    write_run(tmp_path / "lab" / "a", [], 1.5, summary={"started": 1.0})
    write_run(tmp_path / "lab" / "b", [], 1.4, summary={"started": 2.0})
    write_run(tmp_path / "lab" / "c", [], 1.3, status="failed", summary={"started": 3.0})
    (found,) = analyses()
    assert found.estimate(found.arms[0], names.VAL_LOSS) == (1.4, None, 1)
    assert "2 older runs of the same seed left out" in told(tmp_path)


def test_paired_difference_by_hand_and_without_common_seeds(tmp_path: Path, analyses: Callable[..., Any]) -> None:
    lab = tmp_path / "lab"
    for seed, (ours, base) in enumerate([(1.40, 1.50), (1.45, 1.52), (1.31, 1.44)]):
        write_run(lab / f"a{seed}", [f"seed={seed}", "decay=softplus"], base)
        write_run(lab / f"b{seed}", [f"seed={seed}"], ours)
        write_run(lab / f"c{seed}", [f"seed={seed + 7}", "decay=none"], ours)
    (found,) = analyses(baseline="decay=softplus")
    by_arm = {d.arm.name: d for d in found.differences[names.VAL_LOSS]}
    paired = by_arm["decay=lower_bound"]  # −0.10, −0.07, −0.13: mean −0.10, s 0.03
    assert paired.estimate.mean == pytest.approx(-0.10)
    assert paired.estimate.half == pytest.approx(4.302653 * 0.03 / 3**0.5, rel=1e-6)
    assert (paired.judgement, paired.paired, paired.seeds) == ("better", True, ("0", "1", "2"))
    assert not by_arm["decay=none"].paired
    assert by_arm["decay=none"].estimate.mean == pytest.approx(-0.10)
    assert by_arm["decay=none"].estimate.half > paired.estimate.half


def test_values_that_are_not_finite_are_left_out_and_named(tmp_path: Path, analyses: Callable[..., Any]) -> None:
    nan = {names.VAL_LOSS: float("nan")}
    write_run(tmp_path / "lab" / "a", ["seed=0"], 1.5)
    write_run(tmp_path / "lab" / "b", ["seed=1"], 1.5, extra=lambda step: nan if step == 40 else {})
    (found,) = analyses()
    assert found.estimate(found.arms[0], names.VAL_LOSS) == (1.5, None, 1)
    assert "seed 1: validation loss is not finite" in told(tmp_path)


def test_wrong_baselines_and_metrics_are_refused_with_the_nearest(tmp_path: Path) -> None:
    for decay in ("softplus", "lower_bound"):
        for residual in ("prenorm", "block_attnres"):
            write_run(tmp_path / "lab" / f"{decay}{residual}", [f"decay={decay}", f"residual={residual}"])
    runs = collect(["lab"], tmp_path).runs
    parts = strata(group(runs))
    check_baseline(parts, "residual=prenorm decay=softplus")
    with pytest.raises(UserError, match="no such arm; did you mean 'decay=softplus residual=prenorm'"):
        check_baseline(parts, "decay=softpls residual=prenorm")
    with pytest.raises(UserError, match="fits 2 arms"):
        check_baseline(parts, "decay=softplus")
    check_metric(runs, names.TRAIN_LOSS)
    with pytest.raises(UserError, match="did you mean 'val/loss'"):
        check_metric(runs, "val/los")


def test_options_are_described_by_their_own_files() -> None:
    assert "Kimi Linear" in protocol.describe("decay", "softplus")
    assert ";" in protocol.describe("mixer", "kda+mla")
    assert protocol.describe("decay", "no_such_option") == ""
    assert protocol.describe("optim.lr", "0.1") == ""
