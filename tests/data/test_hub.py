"""data=hub: local files through the real library, the cache, and datasets that cannot be had."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from k3lab.config.errors import UserError
from k3lab.data.hub import Hub, HubSettings

TEXTS = [f"document {i}: " + f"word{i} " * (1 + i % 5) for i in range(120)]


@pytest.fixture
def library():
    return pytest.importorskip("datasets")


def write(folder, kind):
    """The same documents as a file of each kind; returns dataset, file and field."""
    file = folder / f"data.{kind}"
    if kind == "jsonl":
        file.write_text("".join(json.dumps({"id": i, "body": text}) + "\n" for i, text in enumerate(TEXTS)))
        return "json", str(file), "body"
    if kind == "parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        columns = {"id": range(len(TEXTS)), "body": TEXTS}
        parquet.write_table(arrow.table({k: list(v) for k, v in columns.items()}), file, row_group_size=50)
        return "parquet", str(file), "body"
    file.write_text("\n".join(TEXTS))
    return "text", str(file), "text"


def hub(folder, dataset, files, field="text", seed=0, **settings):
    common = {"cache": str(folder / "cache"), "seq_len": 16, "batch_size": 6, "validation_fraction": 0.2}
    return Hub(HubSettings(dataset=dataset, files=files, field=field, **{**common, **settings}), seed)


def texts(source, side):
    tokens = source.folder.side(side)
    starts = tokens.starts().tolist()
    pairs = zip(starts, [*starts[1:], len(tokens)], strict=True)
    return [source.decode(tokens.read(start + 1, end).tolist()) for start, end in pairs]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "txt"])
def test_local_files_become_tokens(library, tmp_path, kind, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    source = hub(tmp_path, *write(tmp_path, kind))
    source.prepare()
    train, validation = texts(source, "train"), texts(source, "validation")
    assert [text for text in TEXTS if text in set(train)] == train  # in their order
    assert sorted(train + validation) == sorted(TEXTS)
    assert 8 < len(validation) < 50
    assert source.vocab_size == source.settings.vocab_size == 257
    assert list(elsewhere.iterdir()) == []


def test_batches_follow_seed_and_step_alone(library, tmp_path):
    given = write(tmp_path, "jsonl")
    one, again, other = (hub(tmp_path, *given, seed=seed, packing=True) for seed in (0, 0, 1))
    for source in (one, again, other):
        source.prepare()
    batch = one.train_batch(3, 0, 6)
    assert set(batch) == {"tokens", "targets", "mask", "documents"}
    for key, value in again.train_batch(3, 0, 6).items():
        assert torch.equal(value, batch[key])
    assert not torch.equal(other.train_batch(3, 0, 6)["tokens"], batch["tokens"])
    assert one.fingerprint() == other.fingerprint() != ""


def test_the_cache_is_made_once_and_needs_no_library_later(library, tmp_path, monkeypatch, capsys):
    given = write(tmp_path, "jsonl")
    hub(tmp_path, *given).prepare()
    assert "reading data.dataset=json into" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "datasets", None)
    source = hub(tmp_path, *given, seed=4, packing=True)
    source.prepare()
    assert capsys.readouterr().err == ""
    assert len(texts(source, "train")) + len(texts(source, "validation")) == 120
    with pytest.raises(
        UserError, match=r"^data=hub \(json\) needs the library 'datasets': pip install 'k3lab\[hub\]'$"
    ):
        hub(tmp_path, *given, documents=20).prepare()


def test_other_documents_make_another_cache(library, tmp_path):
    dataset, file, field = write(tmp_path, "jsonl")
    folders = []
    for settings in ({}, {"documents": 60}, {"validation_fraction": 0.5}):
        source = hub(tmp_path, dataset, file, field, **settings)
        source.prepare()
        folders.append(source.folder.path)
    assert source.folder.header["train"]["documents"] < 90
    Path(file).write_text(Path(file).read_text() + json.dumps({"body": "one more"}) + "\n")
    source = hub(tmp_path, dataset, file, field)
    source.prepare()
    folders.append(source.folder.path)
    assert len(set(folders)) == 4
    assert sum(source.folder.header[side]["documents"] for side in ("train", "validation")) == 121


def test_a_limit_takes_the_first_documents(library, tmp_path):
    source = hub(tmp_path, *write(tmp_path, "jsonl"), documents=60)
    source.prepare()
    assert sorted(texts(source, "train") + texts(source, "validation")) == sorted(TEXTS[:60])


def test_a_validation_split_of_its_own(library, tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    for split, part in (("train", TEXTS[:100]), ("test", TEXTS[100:])):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in part))
    source = hub(tmp_path, str(folder), None, validation_split="test")
    source.prepare()
    assert texts(source, "train") == TEXTS[:100]
    assert texts(source, "validation") == TEXTS[100:]
    (folder / "test.jsonl").write_text(json.dumps({"text": "another " * 5}) + "\n")
    changed = hub(tmp_path, str(folder), None, validation_split="test")
    changed.prepare()
    assert texts(changed, "validation") == ["another " * 5]


def test_a_vocabulary(library, tmp_path):
    pytest.importorskip("tokenizers")
    from k3lab.data.tokenize import train_bpe

    dataset, file, field = write(tmp_path, "txt")
    train_bpe([Path(file)], 300, tmp_path / "bpe.json")
    source = hub(tmp_path, dataset, file, field, tokenizer=str(tmp_path / "bpe.json"))
    source.prepare()
    assert sorted(texts(source, "train") + texts(source, "validation")) == sorted(TEXTS)
    assert source.bytes_per_token > 2
    assert source.settings.vocab_size is None
    with pytest.raises(UserError, match=r"data.tokenizer=.*/none.json: no such file"):
        hub(tmp_path, dataset, file, field, tokenizer=str(tmp_path / "none.json")).prepare()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"field": "bodi"}, r"data.field=bodi: must be one of .*; did you mean 'body'\?"),
        ({"field": "id"}, "data.field=id: must hold text, and holds int"),
        ({"files": "/none.jsonl"}, "data.dataset=json, split train: cannot be read: FileNotFoundError: .*none.jsonl"),
        ({"validation_fraction": 1e-6}, "data.dataset=json: no document for validation .*'train': 120"),
    ],
)
def test_one_line_for_what_cannot_be_used_and_no_cache_left(library, tmp_path, settings, message):
    dataset, file, field = write(tmp_path, "jsonl")
    with pytest.raises(UserError, match=message) as caught:
        hub(tmp_path, dataset, **{"files": file, "field": field, **settings}).prepare()
    assert "\n" not in str(caught.value)
    assert [p for p in (tmp_path / "cache" / "hub").iterdir() if p.is_dir()] == []


def test_a_dataset_that_cannot_be_reached_is_one_line(library, tmp_path):
    code = (
        "from k3lab.config.errors import UserError; from k3lab.data.hub import Hub, HubSettings\n"
        f"hub = Hub(HubSettings(dataset='someone/something', cache={str(tmp_path)!r}), 0)\n"
        "try: hub.prepare()\nexcept UserError as error: print(error)"
    )
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.startswith("data.dataset=someone/something, split train: cannot be read: ")
    assert done.stdout.count("\n") == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("k3lab: reading data.dataset=someone/something into ")


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(UserError, match=r"data.cache=.*/cache: cannot be written: "):
        hub(tmp_path, "json", "x.jsonl").prepare()


def test_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert HubSettings().cache == str(tmp_path / "home" / ".cache" / "k3lab")
    assert HubSettings(dataset="json", files="a.jsonl").files == str(tmp_path / "a.jsonl")
    assert HubSettings(dataset="json", files=["a", "https://x/b"]).files == [str(tmp_path / "a"), "https://x/b"]
    assert HubSettings(dataset="some/set", files="a.jsonl").files == "a.jsonl"  # a file of the dataset
    assert HubSettings(dataset="./set").dataset == str(tmp_path / "set")
    config = SimpleNamespace(trainer=SimpleNamespace(devices=1, accumulate=5))
    HubSettings(dataset="some/set", batch_size=10).check(config)
    for settings, message in [
        ({}, "data.dataset=null: must be a dataset such as"),
        ({"dataset": "json"}, "data.files=null: must name the files that data.dataset=json is to read"),
        ({"dataset": "some/set"}, "data.batch_size=16: must be a multiple"),
    ]:
        with pytest.raises(ValueError, match=message):
            HubSettings(**settings).check(config)
    for wrong, message in [
        ({"files": []}, r"files=\[\]: must be null, a file or a list"),
        ({"documents": 0}, "documents=0: must be positive"),
        ({"field": ""}, "field=: must not be empty"),
        ({"validation_fraction": 1.0}, r"validation_fraction=1.0: must lie in \(0, 1\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            HubSettings(**wrong)
