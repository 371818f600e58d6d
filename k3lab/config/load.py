"""Compose a configuration from groups and overrides, and refuse everything that is wrong with it in one line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from k3lab.config import presets
from k3lab.config.errors import UserError, nearest
from k3lab.config.overrides import Override, parse
from k3lab.config.registry import MULTI, conf_dir, groups, options, require_option, settings_class
from k3lab.config.schema import CheckpointSettings, Config, CoreSettings, PathsSettings

_CORE = tuple(CoreSettings.__dataclass_fields__)
_NESTED: dict[str, Any] = {"paths": PathsSettings, "checkpoint": CheckpointSettings}


def load(overrides: Iterable[str] = ()) -> Config:
    """Return the checked configuration of ``train.yaml`` under Hydra overrides; raises UserError."""
    return build(compose_raw([parse(text) for text in overrides]))


def compose_raw(overrides: list[Override]) -> DictConfig:
    """Compose the YAML files: groups first, so that keys are judged against the options chosen."""
    chosen = [o for o in overrides if o.key in groups()]
    for override in chosen:
        require_kept(override)
        _require_choice(override)
    own = presets.experiment(chosen)
    raw = _compose([o.plain() for o in chosen])
    of_model, of_experiment = presets.take(raw)
    if more := presets.choices(of_model, chosen, own):
        raw = _compose([*(o.plain() for o in chosen), *more])
        presets.take(raw)

    def apply_presets() -> None:
        presets.apply(raw, of_model, own)
        presets.apply(raw, of_experiment, own)

    apply_presets()
    if add_pattern_mixers(raw):
        apply_presets()
    assign(raw, [o for o in overrides if o.key not in groups()])
    add_pattern_mixers(raw)
    return raw


def load_folder(folder: Path, overrides: Iterable[str] = ()) -> Config:
    """Return the configuration that a run left in ``folder/config.yaml``, under overrides; raises UserError."""
    file = folder / "config.yaml"
    if not file.is_file():
        raise UserError(f"{folder} is no run folder: it has no config.yaml")
    try:
        raw = OmegaConf.load(file)
    except Exception as error:  # a YAML parser raises many kinds
        raise UserError(f"{file} cannot be read: {one_line(error)}") from error
    if not isinstance(raw, DictConfig):
        raise UserError(f"{file} is no configuration of a run")
    parsed = [parse(text) for text in overrides]
    for override in (o for o in parsed if o.key in groups()):
        require_kept(override)
        if override.key == "experiment":
            raise UserError(f"{override.plain()}: a run that exists has no experiment to choose; name its keys instead")
        _require_choice(override)
        composed = _compose([override.plain()])
        presets.take(composed)
        raw[override.key] = composed[override.key]
    assign(raw, [o for o in parsed if o.key not in groups()])
    return build(raw)


def build(raw: DictConfig) -> Config:
    """Check a raw configuration against the schemas and return it frozen; raises UserError."""
    try:
        plain = OmegaConf.to_container(raw, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(one_line(error)) from error
    assert isinstance(plain, dict)
    plain.pop("experiment", None)
    known = (*_CORE, *(g for g in groups() if g != "experiment"))
    for key in plain:
        if key not in known:
            raise UserError(f"unknown top-level key '{key!s}'{nearest(str(key), known)}")
    for key in known:
        if key not in plain and key not in _CORE:
            raise UserError(f"no option of the group '{key}' is chosen; allowed: {', '.join(options(key))}")
    core = _typed("", CoreSettings, {k: plain[k] for k in _CORE if k in plain and k not in _NESTED})
    for key in _NESTED:
        if not isinstance(plain.get(key, {}), dict):
            raise UserError(f"{key}={plain[key]}: has keys of its own: {', '.join(_NESTED[key].__dataclass_fields__)}")
    parts: dict[str, Any] = {**vars(core), **{k: _typed(f"{k}.", c, plain.get(k, {})) for k, c in _NESTED.items()}}
    for group in known:
        if group in _CORE:
            continue
        if group in MULTI:
            if not isinstance(plain[group], dict) or not plain[group]:
                raise UserError(f"{group}={plain[group]}: must name at least one of {', '.join(options(group))}")
            parts[group] = {name: _option(f"{group}.{name}", group, node) for name, node in plain[group].items()}
        else:
            parts[group] = _option(group, group, plain[group])
    config = Config(**parts)
    try:
        config.check()
    except ValueError as error:
        raise UserError(one_line(error)) from error
    return config


def _option(key: str, group: str, node: Any) -> Any:
    if not isinstance(node, dict) or not isinstance(node.get("name"), str):
        raise UserError(f"{key}={node}: must be one of {', '.join(options(group))}")
    name, allowed = node["name"], options(group)
    if name not in allowed or (group in MULTI and key != f"{group}.{name}"):
        raise UserError(f"{key}.name={name}: no such option; allowed: {', '.join(allowed)}{nearest(name, allowed)}")
    return _typed(f"{key}.", settings_class(group, node["name"]), node)


def _typed(prefix: str, cls: Any, values: dict[str, Any]) -> Any:
    """Return ``values`` as an instance of the dataclass ``cls``, naming the full key of what does not fit."""
    schema = OmegaConf.structured(cls)
    try:
        return OmegaConf.to_object(OmegaConf.merge(schema, values))
    except ConfigKeyError as error:
        key = str(error.full_key or error.key)
        raise UserError(f"unknown key '{prefix}{key}'{_near(prefix, key, schema)}") from error
    except (ValueError, OmegaConfBaseException) as error:
        if (misfit := _misfit(schema, values)) is None:
            raise UserError(prefix + one_line(error)) from error
        raise UserError(f"{prefix}{misfit}={values[misfit]}: must be {_type_name(cls, misfit)}") from error


def _misfit(schema: DictConfig, values: dict[str, Any]) -> str | None:
    """Return the key whose value has another type than the schema's, if that is what is wrong."""
    for key, value in values.items():
        try:
            OmegaConf.merge(schema, {key: value})
        except OmegaConfBaseException:
            return key
    return None


def _near(prefix: str, key: str, schema: DictConfig) -> str:
    allowed = [str(k) for k in schema]
    return nearest(prefix + key, [prefix + k for k in allowed]) or f"; allowed: {', '.join(allowed)}"


def _type_name(cls: Any, key: str) -> str:
    hint = cls.__dataclass_fields__[key].type
    text = hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))
    words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
    words |= {"list[float]": "a list of numbers", "list[str]": "a list of names"}
    parts = [words.get(p.strip(), p.strip()) for p in text.split("|")]
    return " or ".join("null" if p == "None" else p for p in parts)


def _require_choice(override: Override) -> None:
    value = override.value
    if override.key == "experiment" and value is None:
        return
    if isinstance(value, list):
        if override.key not in MULTI:
            raise UserError(f"{override.plain()}: the group '{override.key}' takes one option, not a list")
        if not value:
            raise UserError(f"{override.key}=[]: name at least one of {', '.join(options(override.key))}")
    for name in value if isinstance(value, list) else [value]:
        require_option(override.key, str(name))


def _compose(overrides: list[str]) -> DictConfig:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        try:
            raw = compose("train", overrides=overrides)
        except (HydraException, OmegaConfBaseException) as error:
            raise UserError(one_line(error)) from error
    OmegaConf.set_struct(raw, False)
    return raw


def add_pattern_mixers(raw: DictConfig) -> bool:
    """Load the defaults of mixers that ``model.pattern`` names and ``mixer=`` does not; whether there were any."""
    allowed = options("mixer")
    pattern, last = _plain(raw, "model.pattern"), _plain(raw, "model.last_mixer")
    if pattern is not None and not (isinstance(pattern, list) and all(isinstance(n, str) for n in pattern)):
        raise UserError(f"model.pattern={pattern}: must be a list of {', '.join(allowed)}, such as [{allowed[0]}]")
    if last is not None and not isinstance(last, str):
        raise UserError(f"model.last_mixer={last}: must be one of {', '.join(allowed)}, or null")
    named = dict.fromkeys(pattern or [], f"model.pattern=[{','.join(pattern or [])}]")
    if last is not None:
        named.setdefault(last, f"model.last_mixer={last}")
    missing = {name: where for name, where in named.items() if name not in raw.mixer}
    for name, where in missing.items():
        if name not in allowed:
            raise UserError(f"{where}: '{name}' is no mixer; allowed: {', '.join(allowed)}{nearest(name, allowed)}")
        raw.mixer[name] = _compose([f"mixer=[{name}]"]).mixer[name]
    return bool(missing)


def _plain(raw: DictConfig, key: str) -> Any:
    """Return a key's value as lists, dicts and scalars, None if there is no such key; raises UserError."""
    try:
        value = OmegaConf.select(raw, key)
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException as error:
        raise UserError(f"{key}: {one_line(error)}") from error


def assign(raw: DictConfig, overrides: list[Override]) -> None:
    """Set keys that exist; raises UserError with the nearest key for those that do not."""
    for override in overrides:
        known = _keys(raw)
        if override.removes or override.key not in known:
            if override.key in known:
                require_kept(override)
            raise UserError(_unknown(override.key, known, raw))
        group = override.key.removesuffix(".name").split(".")[0]
        if override.key.endswith(".name") and group in groups():
            raise UserError(f"{override.key}: cannot be set; choose an option with {group}={override.value}")
        current = _plain(raw, override.key)
        if isinstance(current, dict):
            raise UserError(f"{override.key}: has keys of its own: {', '.join(str(k) for k in current)}")
        OmegaConf.update(raw, override.key, override.value, merge=False)


def require_kept(override: Override) -> None:
    """Raise UserError for ``~key``: a configuration always has all its keys."""
    if override.removes:
        raise UserError(f"~{override.key}: keys cannot be removed; set another value instead")


def _unknown(key: str, known: list[str], raw: DictConfig) -> str:
    head = key.split(".")[0]
    if head in raw and isinstance(raw[head], DictConfig) and "." in key:
        inside = [k for k in known if k.startswith(f"{head}.") and not isinstance(OmegaConf.select(raw, k), DictConfig)]
        chosen = f" with {head}={raw[head].name}" if "name" in raw[head] else ""
        shown = ", ".join(k for k in inside if not k.endswith(".name"))
        return f"unknown key '{key}'{nearest(key, inside)}; allowed{chosen}: {shown}"
    if "." not in key:
        names = [*groups(), *_CORE]
        close = nearest(key, names) or nearest(key, [k for k in known if k.endswith(f".{key}")])
        return f"unknown key or group '{key}'{close or '; allowed: ' + ', '.join(names)}"
    return f"unknown key '{key}'{nearest(key, known)}"


def _keys(node: DictConfig, prefix: str = "") -> list[str]:
    found = []
    for key in node:
        found.append(prefix + str(key))
        child = node._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none():
            found += _keys(child, f"{prefix}{key!s}.")
    return found


def one_line(error: BaseException) -> str:
    """Return an exception's message as one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:2]) if lines else type(error).__name__
