"""What is asked of the package optuna, version 4 or newer: a study in a sqlite file, by ask and tell."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from k3lab.config.errors import UserError
from k3lab.sweep.space import Dimension, Scale, number

DATABASE = "optuna.db"
STUDY = "k3lab"
SAMPLERS = ("tpe", "random")
PRUNERS = ("median", "none")
OLDEST = 4  # major version
BUSY_S = 60.0  # how long somebody else may keep the database locked, such as a dashboard


def require_optuna() -> None:
    """Raise UserError unless a version of optuna that is new enough is installed."""
    try:
        import optuna
    except ImportError as error:
        raise UserError("sweep=optuna needs the package optuna: pip install 'k3lab[sweep]'") from error
    if int(optuna.__version__.split(".")[0]) < OLDEST:
        raise UserError(
            f"sweep=optuna needs optuna {OLDEST} or newer, not {optuna.__version__}: pip install 'k3lab[sweep]'"
        )


def whole_keys(dimensions: Sequence[Dimension], config: Any) -> frozenset[str]:
    """Return the keys on a scale that take whole numbers; raises UserError for keys that take no numbers.

    ``config`` is the configuration of the space's first point: its values have the types of the schema.
    """
    whole = set()
    for d in dimensions:
        if d.scale is None:
            continue
        value = _value_of(config, d.key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UserError(f"{d.key}: takes no numbers, and has no interval() or range(); list its values instead")
        if isinstance(value, int):
            if not all(float(b).is_integer() for b in (d.scale.low, d.scale.high, d.scale.step or 1)):
                raise UserError(f"{d.key}=interval({d.scale.low:g},{d.scale.high:g}): {d.key} takes whole numbers")
            whole.add(d.key)
    return frozenset(whole)


def _value_of(config: Any, key: str) -> Any:
    found = config
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else getattr(found, part, None)
    return found


class SearchStudy:
    """The trials of one search, on disk. A trial here is optuna's: one point of the space."""

    def __init__(
        self, folder: Path, settings: Any, direction: str, dimensions: Sequence[Dimension], whole: frozenset[str]
    ) -> None:
        import optuna

        self._optuna, self._settings = optuna, settings
        self._dimensions, self._whole = dimensions, whole
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        address = str((folder / DATABASE).absolute()).replace("{", "{{").replace("}", "}}")  # optuna formats it
        patience = {"connect_args": {"timeout": BUSY_S}}
        try:
            storage = optuna.storages.RDBStorage(f"sqlite:///{address}", engine_kwargs=patience)
            self._study = optuna.create_study(
                storage=storage,
                study_name=STUDY,
                direction=optuna.study.StudyDirection[direction.upper()],
                pruner=self._pruner(),
                load_if_exists=True,
            )
        except Exception as error:  # of optuna, of SQLAlchemy, of sqlite
            raise UserError(f"{folder / DATABASE} cannot be used: {' '.join(str(error).split())[:300]}") from error

    def trials(self, *states: str) -> list[Any]:
        """Return the trials in these states (``complete``, ``fail``, ``pruned``, ``running``), or all, by number."""
        found = self._study.get_trials(deepcopy=False)
        return [t for t in found if not states or t.state.name.lower() in states]

    def ask(self) -> Any:
        """Begin a trial, and write it down."""
        self._study.sampler = self._sampler(len(self.trials()))
        return self._suggested(self._study.ask())

    def again(self, trial: Any) -> Any:
        """Go on with a trial that was begun and not told, with the values that it had."""
        self._study.sampler = self._sampler(trial.number)
        return self._suggested(self._optuna.trial.Trial(self._study, trial._trial_id))

    def point(self, trial: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return a trial's values as overrides, and the same as short texts."""
        exact, short = [], []
        for d in self._dimensions:
            value = trial.params[d.key]
            exact.append(f"{d.key}={value if isinstance(value, str) else number(value)}")
            short.append(f"{d.key}={value:.4g}" if isinstance(value, float) else f"{d.key}={value}")
        return tuple(exact), tuple(short)

    def tell(self, trial: Any, value: float | None = None, state: str | None = None) -> None:
        """End a trial with its value, or as ``fail`` or ``pruned``."""
        told = None if state is None else self._optuna.trial.TrialState[state.upper()]
        self._study.tell(trial, value, told)

    def _suggested(self, trial: Any) -> Any:
        for d in self._dimensions:
            if d.scale is None:
                trial.suggest_categorical(d.key, [text.split("=", 1)[1] for text in d.values])
            elif d.key in self._whole:
                trial.suggest_int(d.key, **_whole_bounds(d.scale), log=d.scale.log)
            else:
                trial.suggest_float(d.key, d.scale.low, d.scale.high, step=d.scale.step, log=d.scale.log)
        return trial

    def _sampler(self, trial: int) -> Any:
        """Return a sampler for one trial.

        One sampler for all of them would begin its random numbers again in a search that goes on.
        """
        seed = int(np.random.SeedSequence([self._settings.seed, trial]).generate_state(1)[0])
        samplers = self._optuna.samplers
        if self._settings.sampler == "random":
            return samplers.RandomSampler(seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # in version 4 constant_liar is called experimental
            # Trials that run count as bad ones: parallel jobs keep away from each other.
            return samplers.TPESampler(seed=seed, n_startup_trials=self._settings.startup, constant_liar=True)

    def _pruner(self) -> Any:
        pruners = self._optuna.pruners
        if self._settings.pruner == "none":
            return pruners.NopPruner()
        return pruners.MedianPruner(n_startup_trials=self._settings.startup, n_warmup_steps=self._settings.warmup)


def _whole_bounds(scale: Scale) -> dict[str, int]:
    return {"low": int(scale.low), "high": int(scale.high), "step": int(scale.step or 1)}
