"""A configuration is composed, typed and checked; every mistake is one line with the nearest valid name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from k3lab.config.errors import UserError
from k3lab.config.load import load, load_folder
from k3lab.config.registry import component, conf_dir, groups, options, settings_class
from k3lab.config.schema import mask

NEEDED = {"shards": ["data.path=/tokens"], "hub": ["data.dataset=owner/name"]}  # what has no default
OPTIONS = [(g, o) for g in groups() if g != "experiment" for o in options(g)]


def component_file_is_shared(group: str, option: str) -> bool:
    """Presets that share their group's settings.py may leave what they do not change to the defaults."""
    return settings_class(group, option).__name__.lower() == f"{group}settings"


def refusal(*overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load(overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes_and_its_yaml_states_every_setting(group: str, option: str) -> None:
    config = load([f"{group}={option}", *NEEDED.get(option, [])])
    chosen = config.mixer[option] if group == "mixer" else getattr(config, group)
    stated = yaml.safe_load((conf_dir() / group / f"{option}.yaml").read_text())
    stated.pop("presets", None)  # settings of other groups
    shared = component_file_is_shared(group, option)
    assert set(stated) <= set(vars(chosen))
    assert shared or set(stated) == set(vars(chosen)), "the YAML and the dataclass name the same settings"
    assert next(iter(stated)) == "name"


@pytest.mark.parametrize("name", options("experiment"))
def test_every_experiment_composes(name: str) -> None:
    assert load([f"experiment={name}"]).name == name


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_settings_read_without_torch_equal_the_real_class(group: str, option: str) -> None:
    import torch  # noqa: F401  the registry imports the real modules once torch is there

    name = yaml.safe_load((conf_dir() / group / f"{option}.yaml").read_text())["name"]
    real = settings_class(group, name)
    code = (
        "import sys, dataclasses, json\n"
        "from k3lab.config.registry import settings_class\n"
        f"cls = settings_class({group!r}, {name!r})\n"
        "assert 'torch' not in sys.modules\n"
    )
    light = _light(code + "print(json.dumps([[f.name, str(f.type)] for f in dataclasses.fields(cls)]))")
    assert light == [[f, str(t.type)] for f, t in real.__dataclass_fields__.items()]


def _light(code: str) -> list[list[str]]:
    import json

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(out.stdout)


@pytest.mark.parametrize("group", ["decay", "router", "residual", "mixer", "ffn"])
def test_every_option_of_the_techniques_has_a_component(group: str) -> None:
    for option in options(group):
        name = yaml.safe_load((conf_dir() / group / f"{option}.yaml").read_text())["name"]
        assert component(group, name).__module__.startswith(f"k3lab.{group}.")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "decay=lowerbound",
            "decay=lowerbound: no such option; allowed: lower_bound, none, scalar, softplus; "
            "did you mean 'lower_bound'?",
        ),
        ("decya=softplus", "unknown key or group 'decya'; did you mean 'decay'?"),
        ("trainer.max_stepz=3", "unknown key 'trainer.max_stepz'; did you mean 'trainer.max_steps'?"),
        ("max_steps=3", "did you mean"),
        ("trainer.max_steps=soon", "trainer.max_steps=soon: must be a whole number"),
        ("trainer.max_steps=2.5", "trainer.max_steps=2.5: must be a whole number"),
        ("optim.lr=fast", "optim.lr=fast: must be a number"),
        ("+sead=3", "did you mean 'seed'?"),
        ("~decay", "keys cannot be removed"),
        ("decay=softplus,none", "add -m"),
        ("decay", "write key=value"),
        ("decay=[softplus,none]", "takes one option"),
        ("mixer=[]", "name at least one"),
        ("mixer=[kda,mia]", "did you mean 'mla'?"),
        ("model.pattern=[kda,mlla]", "did you mean 'mla'?"),
        ("paths=elsewhere", "has keys of its own: output"),
        ("seed=-1", "seed=-1"),
        ("checkpoint.every=0", "checkpoint.every=0: must be positive"),
        ("name=a/b", "must be letters"),
        ("hydra.run.dir=x", "unknown key 'hydra.run.dir'"),
        ("decay.g_min=-9", "decay.g_min=-9"),
        ("decay.g_min=1", "decay.g_min=1"),
        ("decay.g_min=nan", "decay.g_min=nan"),
        ("ffn.top_k=16", "top_k"),
        ("router.score=softmax", "softmax"),
        ("model.hidden_size=97", "hidden_size=97"),
        ("trainer.accumulate=3", "batch_size"),
        ("data.batch_size=0", "data.batch_size=0"),
        ("trainer.devices=2", "devices"),
        ("trainer.max_steps=10000000000000", "trainer.max_steps=10000000000000: must be at most"),
        ("data.batch_size=99999999999999999999999", "must be at most"),
        ("model.layers=100000", "model.layers=100000: must lie in [1, 1000]"),
        ("trainer.workers=100000", "must lie in [0, 256]"),
        ("tracking.uri=http://", "tracking.uri=http://: must be"),
        ("model.pattern=kda", "model.pattern=kda: must be a list"),
        ("model.pattern=3", "model.pattern=3: must be a list"),
        ("model.pattern=[[kda]]", "must be a list"),
        ("model.last_mixer=3", "model.last_mixer=3: must be one of"),
        ("model.last_mixer=mlaa", "model.last_mixer=mlaa: 'mlaa' is no mixer"),
        ("model.pattern='${oops}'", "model.pattern: Interpolation key 'oops' not found"),
        ("optim.betas=[a,b]", "optim.betas=['a', 'b']: must be a list of numbers"),
        ("optim.betas={a:1}", "optim.betas={'a': 1}: must be a list of numbers"),
        ("model.name=tiny", "choose an option with model=tiny"),
        ("mixer.kda.name=mla", "choose an option with mixer=mla"),
        ("name=..", "name=..: must be"),
        ("paths.output=''", "paths.output='': must be the path of a folder"),
    ],
)
def test_refusals(override: str, expected: str) -> None:
    assert expected in refusal(override)


def test_mixers_named_by_the_pattern_are_loaded() -> None:
    config = load(["mixer=kda", "model.pattern=[kda,softmax_attention]"])
    assert list(config.mixer) == ["kda", "softmax_attention"]


def test_plus_is_as_good_as_plain() -> None:
    assert load(["+experiment=quickstart", "++decay=softplus"]).decay.name == "softplus"


def test_round_trip_through_a_run_folder(tmp_path: Path) -> None:
    config = load(["decay=softplus", "mixer=kda", "seed=5"])
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert load_folder(tmp_path) == config
    assert load_folder(tmp_path, ["seed=6"]).fingerprint() != config.fingerprint()
    assert load_folder(tmp_path, ["paths.output=elsewhere"]).fingerprint() == config.fingerprint()


@pytest.mark.parametrize(
    ("key", "value"),
    [("mixer", 3), ("mixer", {}), ("paths", 3), ("checkpoint", [1]), ("trainer", None), ("model.name", "nan0")],
)
def test_an_edited_config_file_is_refused(tmp_path: Path, key: str, value: object) -> None:
    config = load().to_dict()
    *groups_, last = key.split(".")
    node = config
    for part in groups_:
        node = node[part]
    node[last] = value
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(UserError, match=key.split(".")[0]):
        load_folder(tmp_path)


@pytest.mark.parametrize("override", ["experiment=quickstart", "experiment=null", "~decay"])
def test_a_run_that_exists_takes_no_experiment(tmp_path: Path, override: str) -> None:
    (tmp_path / "config.yaml").write_text(load().to_yaml())
    with pytest.raises(UserError):
        load_folder(tmp_path, [override])


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "foo: 1\n", ""])
def test_a_foreign_config_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError):
        load_folder(tmp_path)


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://host:5000", "http://host:5000"),
        ("https://user:pa@ss/w@host/path", "https://user:***@host/path"),
        ("postgresql://u:p@h/db?password=x&mode=1", "postgresql://u:***@h/db?password=***&mode=1"),
        ("sqlite:////tmp/a:b/mlflow.db", "sqlite:////tmp/a:b/mlflow.db"),
    ],
)
def test_passwords_are_masked(uri: str, shown: str) -> None:
    assert mask(uri) == shown
