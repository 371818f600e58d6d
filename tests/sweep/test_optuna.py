"""The search, told what jobs would have told it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from k3lab.config.errors import UserError
from k3lab.sweep.base import Trial
from k3lab.sweep.optuna import Optuna, OptunaSettings
from k3lab.sweep.space import parse_space

optuna = pytest.importorskip("optuna")

LR = "optim.lr=tag(log,interval(1e-4,1))"
CONFIG: Any = SimpleNamespace(
    seed=5,
    optim=SimpleNamespace(lr=1e-4, betas=[0.9, 0.95]),
    model=SimpleNamespace(layers=2, tie_embeddings=True),
    mixer={"kda": SimpleNamespace(scale=1.0)},
    fingerprint=lambda: "f",
)


def search(folder: Path | None, *overrides: str, **settings: Any) -> Optuna:
    one = Optuna(OptunaSettings(**settings), CONFIG, parse_space(overrides or (LR,)))
    if folder is not None:
        one.begin(folder)
    return one


def run(one: Optuna, result: Callable[[Trial], float | None], most: int = 99) -> list[Trial]:
    trials: list[Trial] = []
    while len(trials) < most and (trial := one.ask()) is not None:
        trials.append(trial)
        one.tell(trial, "finished", {"val/loss": result(trial)})
    return trials


def lr_of(trial: Trial) -> float:
    return float(next(t for t in trial.overrides if t.startswith("optim.lr=")).split("=")[1])


def by_lr(trial: Trial) -> float:
    return (math.log10(lr_of(trial)) + 2) ** 2


def test_trials_draw_from_the_space_and_the_best_is_told(tmp_path: Path) -> None:
    space = (
        LR,
        "decay=none,softplus",
        "model.layers=interval(2,8)",
        "mixer.kda.scale=range(0.5,2,0.5)",
        "seed=3",
        "a=1",
    )
    one = search(tmp_path, *space, trials=25, startup=5)
    assert one.describe() == "25 trials, minimize val/loss"
    trials = run(one, by_lr)
    assert [t.index for t in trials] == list(range(25))
    assert all(t.overrides[:2] == ("seed=3", "a=1") for t in trials)
    drawn = [dict(text.split("=") for text in t.overrides[2:]) for t in trials]
    assert {d["decay"] for d in drawn} == {"none", "softplus"}
    assert {d["model.layers"] for d in drawn} <= {str(i) for i in range(2, 9)}
    assert {d["mixer.kda.scale"] for d in drawn} == {"0.5", "1", "1.5"}
    assert all(1e-4 <= float(d["optim.lr"]) <= 1 for d in drawn)
    assert trials[3].label == trials[3].arm
    assert trials[3].label.startswith(f"trial 3: optim.lr={lr_of(trials[3]):.4g} decay=")
    best = min(trials, key=by_lr)
    told = one.summary()["search"]
    assert told["trials"] == {"complete": 25, "pruned": 0, "failed": 0, "running": 0}
    assert told["best"]["trial"] == best.index
    assert told["best"]["value"] == by_lr(best)
    assert told["best"]["overrides"] == list(best.overrides[2:])
    assert one.headline().startswith(f"best of 25 complete: trial {best.index}, val/loss ")  # type: ignore[union-attr]
    assert one.verdict([]) == "finished"
    late, early = trials[-8:], trials[:5]
    assert sum(map(by_lr, late)) / 8 < sum(map(by_lr, early)) / 5, "it has learnt nothing"


def test_what_is_drawn_does_not_depend_on_interruptions(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    whole = run(search(folders[0], trials=8, startup=3), by_lr)
    cut = [*run(search(folders[1], trials=8, startup=3), by_lr, most=4)]
    begun = search(folders[1], trials=8, startup=3).ask()
    assert begun is not None
    assert begun.index == 4
    again = search(folders[1], trials=8, startup=3)
    cut += run(again, by_lr)
    assert cut == whole
    assert cut[4] == begun, "a trial that was begun goes on with its values"
    assert len({lr_of(t) for t in whole}) == 8
    assert run(search(folders[2], trials=8, startup=3, seed=1), by_lr) != whole


def test_failures_count_and_are_no_results(tmp_path: Path) -> None:
    one = search(tmp_path, trials=5)
    trials = [t for _ in range(5) if (t := one.ask())]
    assert one.ask() is None
    assert one.verdict([]) == "failed", "all are under way"
    one.tell(trials[0], "finished", {"val/loss": None})
    one.tell(trials[1], "finished", {"val/loss": math.nan})
    one.tell(trials[2], "failed", {"val/loss": 0.1})
    one.tell(trials[3], "interrupted", {})
    one.tell(trials[4], "finished", {"val/loss": 3.0})
    assert one.summary()["search"]["trials"] == {"complete": 1, "pruned": 0, "failed": 3, "running": 1}
    assert one.verdict([]) == "failed", "one was interrupted"
    one.tell(trials[3], "failed", {})
    assert one.verdict([]) == "finished"
    assert one.headline() == f"best of 1 complete, 4 failed: trial 4, val/loss 3: optim.lr={lr_of(trials[4]):.4g}"


def test_a_search_without_any_result_has_failed(tmp_path: Path) -> None:
    one = search(tmp_path, trials=1)
    assert run(one, lambda t: None)
    assert one.verdict(["failed"]) == "failed"
    assert one.summary()["search"]["best"] is None
    assert one.headline() is None


def test_a_metric_that_no_job_has_ends_the_search_at_its_first_trial(tmp_path: Path) -> None:
    one = search(tmp_path, trials=3, metric="balance/cvv")
    trial = one.ask()
    assert trial is not None
    with pytest.raises(UserError, match="did you mean 'balance/cv'"):
        one.tell(trial, "finished", {"balance/cv": 1.0})


def test_a_trial_worse_than_the_median_is_pruned_by_what_it_reports(tmp_path: Path) -> None:
    one = search(tmp_path, trials=9, startup=2, warmup=20)
    for _ in range(2):
        trial = one.ask()
        assert trial is not None
        assert one.watch(trial, {10: 9.0, 20: 2.0, 30: 1.0}) is None
        one.tell(trial, "finished", {"val/loss": 1.0})
    good, bad, nan = one.ask(), one.ask(), one.ask()
    assert good is not None
    assert bad is not None
    assert nan is not None
    assert one.watch(good, {}) is None
    assert one.watch(good, {10: 8.0, 20: 1.9}) is None
    assert one.watch(nan, {20: math.nan}) is None, "the job will tell by itself that it failed"
    assert one.watch(bad, {10: 99.0}) is None, "warmup"
    again = search(tmp_path, trials=9, startup=2, warmup=20)  # the search was killed; the job does step 10 again
    assert [again.ask(), again.ask()] == [good, bad]
    assert again.watch(bad, {10: 99.0}) is None
    why = again.watch(bad, {10: 99.0, 20: 3.5})
    assert why == "val/loss 3.5 at step 20: worse than the median"
    assert again.watch(bad, {10: 99.0, 20: 3.5, 30: 0.1}) == why, "decided is decided"
    again.tell(bad, "pruned", {"val/loss": 3.5})
    again.tell(good, "finished", {"val/loss": 1.5})
    assert again.summary()["search"]["trials"]["pruned"] == 1
    assert again.summary()["search"]["best"]["value"] == 1.0
    again.settings = OptunaSettings(trials=9)
    free = search(tmp_path, trials=9, startup=2, pruner="none")
    trial = free.ask()
    assert trial is not None
    assert free.watch(trial, {10: 99.0, 20: 99.0}) is None


def test_maximize(tmp_path: Path) -> None:
    for metric, direction in [("val/accuracy", "maximize"), ("val/loss", "minimize"), ("balance/cv", "minimize")]:
        assert OptunaSettings(metric=metric).resolved_direction() == direction
    assert OptunaSettings(direction="maximize").resolved_direction() == "maximize"
    one = search(tmp_path, trials=4, metric="val/accuracy", startup=1)
    first = one.ask()
    assert first is not None
    one.watch(first, {10: 0.5})
    one.tell(first, "finished", {"val/accuracy": 0.6})
    worse, better = one.ask(), one.ask()
    assert worse is not None
    assert better is not None
    assert one.watch(worse, {10: 0.4})
    assert one.watch(better, {10: 0.7}) is None
    one.tell(better, "finished", {"val/accuracy": 0.9})
    assert one.summary()["search"]["best"]["trial"] == better.index


def test_seeds_are_told_as_their_mean_and_the_first_one_prunes(tmp_path: Path) -> None:
    one = search(tmp_path, trials=4, seeds=3, startup=1)
    assert one.total() == 12
    jobs = [one.ask() for _ in range(3)]
    for k, (job, loss) in enumerate(zip(jobs, (1.0, 2.0, 6.0), strict=True)):
        assert job is not None
        assert job.index == k
        assert job.overrides[-1] == f"seed={5 + k}"
        assert job.label == f"{job.arm} seed={5 + k}"
        assert job.arm == jobs[0].arm  # type: ignore[union-attr]
        assert one.watch(job, {10: loss}) is None
    for job, loss in zip(jobs, (1.0, 2.0, 6.0), strict=True):
        assert one.summary()["search"]["best"] is None
        one.tell(job, "finished", {"val/loss": loss})  # type: ignore[arg-type]
    assert one.summary()["search"]["best"]["value"] == 3.0
    assert one.summary()["search"]["best"]["jobs"] == [0, 1, 2]
    assert "(mean of 3 seeds)" in one.headline()  # type: ignore[operator]
    first, second = one.ask(), one.ask()
    assert first is not None
    assert second is not None
    assert one.watch(second, {10: 99.0}) is None, "another seed is compared with nothing"
    why = one.watch(first, {10: 1.5})
    assert why, "worse than the first seed's 1.0"
    assert one.watch(second, {10: 0.1}) == why, "its siblings end as well"
    one.tell(first, "pruned", {})
    assert one.watch(second, {}) == why
    one.tell(second, "pruned", {})
    job = one.ask()
    assert job is not None
    assert job.index == 6, "the third seed of a pruned trial is not run"
    sibling = one.ask()
    assert sibling is not None
    one.tell(job, "finished", {"val/loss": None})
    assert "failed with seed=5" in (one.watch(sibling, {}) or "")
    one.tell(sibling, "finished", {"val/loss": 0.0})
    left = run(one, lambda t: 9.0)
    assert [t.index for t in left] == [9, 10, 11]
    assert one.summary()["search"]["trials"] == {"complete": 2, "pruned": 1, "failed": 1, "running": 0}


def test_a_point_that_was_tried_is_not_run_again(tmp_path: Path) -> None:
    one = search(tmp_path, "decay=none,softplus,scalar", "router=topk,quantile", trials=6, sampler="random", seed=1)
    trials = run(one, lambda t: float(t.index))
    assert len({t.overrides for t in trials}) == len(trials) < 6, "with six of six points some are drawn twice"
    assert one.summary()["search"]["trials"]["complete"] == 6
    assert one.summary()["search"]["best"]["trial"] == 0
    with pytest.raises(UserError, match=r"sweep\.trials=7: there are 6 points"):
        search(None, "decay=none,softplus,scalar", "router=topk,quantile", trials=7)


def test_which_searches_go_on(tmp_path: Path) -> None:
    one = search(tmp_path, trials=2)
    run(one, by_lr)
    left = {"status": "running", **one.summary()}
    assert search(None, trials=2, sampler="random", pruner="none", warmup=9).continues(left, [])
    assert not search(None, "optim.lr=interval(1e-4,1)", trials=2).continues(left, [])
    assert not search(None, trials=2, metric="val/accuracy").continues(left, [])
    assert not search(None, trials=2, seeds=2).continues(left, [])
    done = {**left, "status": "finished"}
    assert not search(None, trials=2).continues(done, [])
    assert search(None, trials=3).continues(done, []), "more trials of the same search"
    assert not search(None, trials=3).continues({"status": "failed", "jobs": []}, []), "a grid"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("decay=none",), "nothing to search"),
        (("seed=1,2",), "sweep.seeds=3 repeats"),
        (("model.layers=interval(1.5,4)",), "takes whole numbers"),
        (("optim.betas=interval(1.5,4)",), "takes no numbers"),
        (("model.tie_embeddings=interval(0,1)",), "takes no numbers"),
    ],
)
def test_spaces_that_cannot_be_searched(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        search(None, *overrides, trials=1)


@pytest.mark.parametrize(
    "values",
    [
        *({"trials": 0}, {"direction": "up"}, {"sampler": "tpee"}, {"pruner": "mean"}, {"seed": -1}),
        *({"startup": -1}, {"warmup": -1}, {"seeds": 0}),
    ],
)
def test_settings(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        OptunaSettings(**values)


def test_settings_against_the_trainer() -> None:
    trainer = SimpleNamespace(val_batches=0, val_every=10, max_steps=30)
    config = SimpleNamespace(trainer=trainer)
    with pytest.raises(ValueError, match=r"trainer\.val_batches=0"):
        OptunaSettings().check(config)
    OptunaSettings(metric="train/loss").check(config)
    assert OptunaSettings().warnings(config) == []
    trainer.val_every = None
    assert "no validation to prune at" in OptunaSettings().warnings(config)[0]
    assert OptunaSettings(pruner="none").warnings(config) == []


def test_without_optuna_or_with_an_old_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(optuna, "__version__", "3.6.1")
        with pytest.raises(UserError, match=r"not 3\.6\.1: pip install 'k3lab\[sweep\]'"):
            search(None)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"needs the package optuna: pip install 'k3lab\[sweep\]'"):
        search(None)


def test_a_damaged_study_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "optuna.db").write_bytes(b"no database at all " * 100)
    with pytest.raises(UserError, match=r"optuna\.db cannot be used: "):
        search(tmp_path)
