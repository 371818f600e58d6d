"""Arms: runs of one configuration but for the seed; strata: arms that may be compared, because their data agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from k3lab.report.record import SEEDS, Run

# Where a run writes, who watches it and how often: no arm differs in these alone.
_ASIDE = ("resume", "name", "paths.", "tracking", "launch", "sweep", "checkpoint.")
_ASIDE_KEYS = ("trainer.display", "trainer.workers", "trainer.log_every", "trainer.val_every", *SEEDS)
_ORDER = (
    *("decay", "router", "residual", "mixer", "ffn", "model", "optim", "schedule"),
    *("trainer", "strategy", "diagnostics", "data"),
)
DATA = "data.fingerprint"  # stands for the files behind equal settings
LENGTH = "trainer.max_steps"


@dataclass
class Arm:
    """The runs of one configuration."""

    config: dict[str, str]
    runs: list[Run]
    name: str = ""  # decay=softplus router=sign_bias
    short: str = ""  # softplus · sign_bias
    superseded: list[Run] = field(default_factory=list)  # of seeds that were run again

    @property
    def by_seed(self) -> dict[str, Run]:
        """Return seed → run."""
        return {run.seed: run for run in self.runs}

    def with_status(self, *status: str) -> list[Run]:
        """Return the runs of these statuses."""
        return [run for run in self.runs if run.status in status]


@dataclass
class Stratum:
    """Arms on the same data (and of one length, where length was varied)."""

    title: str  # what it has in common and other strata don't; empty if there is only one
    arms: list[Arm]
    factors: list[Factor] = field(default_factory=list)
    aliases: dict[str, list[str]] = field(default_factory=dict)  # factor -> keys that change along with it


@dataclass(frozen=True)
class Factor:
    """A key in which arms differ, and its values in order of first appearance."""

    key: str
    levels: tuple[str, ...]


def identity(run: Run) -> dict[str, str]:
    """Return what defines a run's arm, with all mixers as one entry."""
    mixers = [k.split(".")[1] for k in run.config if k.startswith("mixer.") and k.count(".") == 1]
    kept = {"mixer": "+".join(mixers)} if mixers else {}
    for key, value in run.config.items():
        aside = key in _ASIDE_KEYS or key.startswith(_ASIDE)
        if not aside and not (key.startswith("mixer.") and key.count(".") == 1):
            kept[key] = value
    return kept


def group(runs: Sequence[Run]) -> list[Arm]:
    """Return the arms in order of their first run; a seed that was run again counts once, by its best run."""
    fingerprints = {run.data for run in runs if run.data}
    arms: dict[tuple[tuple[str, str], ...], Arm] = {}
    for run in runs:
        config = identity(run)
        if len(fingerprints) > 1:
            config[DATA] = run.data or "not recorded"
        key = tuple(sorted(config.items()))
        arm = arms.setdefault(key, Arm(config, []))
        rival = arm.by_seed.get(run.seed)
        if rival is None:
            arm.runs.append(run)
        elif _worth(run) >= _worth(rival):
            arm.runs[arm.runs.index(rival)] = run
            arm.superseded.append(rival)
        else:
            arm.superseded.append(run)
    for arm in arms.values():
        arm.runs.sort(key=lambda r: (len(r.seed), r.seed))
    return list(arms.values())


def _worth(run: Run) -> tuple[bool, bool, float]:
    return run.status == "finished", run.status in ("interrupted", "running"), run.started


def differing(arms: Sequence[Arm]) -> list[str]:
    """Return the keys whose values differ between arms.

    A setting of an option (decay.g_min of decay=lower_bound) is compared only among arms that have the option.
    """
    keys = dict.fromkeys(k for arm in arms for k in arm.config)
    found = []
    for key in keys:
        group_key = key.split(".")[0]
        if key == group_key or group_key not in keys or key in (LENGTH, DATA):
            values: dict[str, set[str]] = {"": {arm.config.get(key, "—") for arm in arms}}
        else:
            values = {}
            for arm in arms:
                if key in arm.config:
                    same = "" if group_key == "mixer" else arm.config[group_key]
                    values.setdefault(same, set()).add(arm.config[key])
        if any(len(v) > 1 for v in values.values()):
            found.append(key)
    return sorted(found, key=_rank)


def _rank(key: str) -> tuple[int, bool, str]:
    head = key.split(".")[0]
    return (_ORDER.index(head) if head in _ORDER else len(_ORDER)), "." in key, key


def factors(arms: Sequence[Arm]) -> tuple[list[Factor], dict[str, list[str]]]:
    """Return the factors in which arms differ; keys that change together are one factor, the first of them.

    Also returns factor → the other keys that change along with it.
    """
    classes: dict[tuple[int, ...], list[str]] = {}
    for key in differing(arms):
        seen = list(dict.fromkeys(arm.config.get(key, "—") for arm in arms))
        classes.setdefault(tuple(seen.index(arm.config.get(key, "—")) for arm in arms), []).append(key)
    found, aliases = [], {}
    for same in classes.values():
        key = same[0]
        found.append(Factor(key, tuple(dict.fromkeys(arm.config.get(key, "—") for arm in arms))))
        if same[1:]:
            aliases[key] = same[1:]
    return found, aliases


def strata(arms: Sequence[Arm]) -> list[Stratum]:
    """Return arms by their data, and by their length if the same arm was run for several; names them all."""
    lengths: dict[tuple[tuple[str, str], ...], set[str]] = {}
    for arm in arms:
        rest = tuple(sorted((k, v) for k, v in arm.config.items() if k != LENGTH))
        lengths.setdefault(rest, set()).add(arm.config.get(LENGTH, ""))
    by_length = any(len(v) > 1 for v in lengths.values())
    keys = [k for k in differing(arms) if _is_data(k) or (by_length and k == LENGTH)]
    groups: dict[tuple[str, ...], list[Arm]] = {}
    for arm in arms:
        groups.setdefault(tuple(arm.config.get(k, "—") for k in keys), []).append(arm)
    found = []
    for values, inside in groups.items():
        title = " ".join(f"{k}={v}" for k, v in zip(keys, values, strict=True) if v != "—")
        stratum = Stratum(title, inside, *factors(inside))
        _name(stratum)
        found.append(stratum)
    weight = [(sum(len(a.with_status("finished")) for a in s.arms), sum(len(a.runs) for a in s.arms)) for s in found]
    order = sorted(range(len(found)), key=lambda i: (-weight[i][0], -weight[i][1], i))
    return [found[i] for i in order]


def _is_data(key: str) -> bool:
    """Return whether a key says what is learnt; the batch size only says how."""
    return key.split(".")[0] == "data" and key != "data.batch_size"


def _name(stratum: Stratum) -> None:
    keys = [f.key for f in stratum.factors]
    for arm in stratum.arms:
        if keys:
            present = [(k, arm.config[k]) for k in keys if k in arm.config]
        else:
            present = [(k, arm.config[k]) for k in ("decay", "router", "residual") if k in arm.config]
        arm.name = " ".join(f"{k}={v}" for k, v in present) or "all runs"
        arm.short = "\u00a0· ".join(brief(k, v) for k, v in present) or "all runs"


def brief(key: str, value: str) -> str:
    """Return a setting in few letters: an option by its name alone, a number with its key."""
    value = value if len(value) <= 28 else f"…{value[-26:]}"
    return value if "." not in key else f"{key.split('.')[-1]} {value}"


def matching(arms: Iterable[Arm], wanted: str) -> list[Arm]:
    """Return the arms of this name, or with these settings (``decay=none router=topk``, in any order)."""
    arms = list(arms)
    exact = [a for a in arms if wanted in (a.name, a.short)]
    if exact:
        return exact
    settings = [word.partition("=") for word in wanted.replace(",", " ").split()]
    if not all(middle for _, middle, _ in settings):
        return []
    return [a for a in arms if all(a.config.get(k) == v for k, _, v in settings)]
