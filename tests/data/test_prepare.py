"""k3lab data prepare: every document once, on its side, and the output whole or not there."""

import hashlib
import json

import pytest

from k3lab.config.errors import UserError
from k3lab.data.prepare import prepare, text_hash
from k3lab.data.tokenfolder import open_folder
from k3lab.data.tokenize import load_tokenizer, train_bpe


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i:02}.txt").write_text(f"document {i}: é 語 🙂\n" * (1 + i % 3))
    lines = [json.dumps({"text": f"line {i}"}) for i in range(40)]
    (folder / "lines.jsonl").write_text("\n".join([*lines, json.dumps({"text": ""}), lines[3], lines[3]]))
    return folder


def texts(folder, side, tokenizer):
    tokens = folder.side(side)
    ends = [*folder.side(side).starts().tolist()[1:], len(tokens)]
    return [
        tokenizer.decode(tokens.read(start, end)[1:].tolist())
        for start, end in zip(tokens.starts().tolist(), ends, strict=True)
    ]


def expected(corpus):
    files = [(corpus / f"{i:02}.txt").read_text() for i in range(40)]
    return [*files, *(f"line {i}" for i in range(40)), "line 3", "line 3"]


def test_every_document_is_on_one_side_in_its_order(corpus, tmp_path):
    assert prepare([corpus], tmp_path / "out", None, 0.2) is None
    folder = open_folder(tmp_path / "out", verify=True)
    sides = {name: texts(folder, name, load_tokenizer(None)) for name in ("train", "validation")}
    for name, found in sides.items():
        assert found == [text for text in expected(corpus) if (text_hash(text) < 0.2 * 2**64) == (name == "validation")]
        assert folder.header[name]["bytes"] == sum(len(text.encode()) for text in found)
    assert 5 < len(sides["validation"]) < 30
    assert not set(sides["train"]) & set(sides["validation"])
    assert folder.header["source"] == {"inputs": [str(corpus)], "validation_fraction": 0.2}


def test_a_vocabulary_goes_with_the_tokens(corpus, tmp_path):
    pytest.importorskip("tokenizers")
    train_bpe(sorted(corpus.iterdir()), 300, tmp_path / "vocabulary.json")
    prepare([corpus / "lines.jsonl", corpus], tmp_path / "out", tmp_path / "vocabulary.json", 0.2)
    folder = open_folder(tmp_path / "out", verify=True)
    (tmp_path / "vocabulary.json").unlink()
    tokenizer = load_tokenizer(folder.path / folder.header["tokenizer"])
    found = [text for name in ("train", "validation") for text in texts(folder, name, tokenizer)]
    assert sorted(found) == sorted(expected(corpus))
    assert folder.header["vocab_size"] == tokenizer.vocab_size
    for name in ("train", "validation"):
        assert folder.header[name]["tokens"] < folder.header[name]["bytes"]


@pytest.mark.parametrize("fraction", [1e-9, 1 - 1e-9])
def test_there_is_always_a_document_on_each_side(corpus, tmp_path, fraction):
    prepare([corpus], tmp_path / "out", None, fraction)
    counts = [open_folder(tmp_path / "out").header[name]["documents"] for name in ("train", "validation")]
    assert sum(counts) == 82
    assert 1 <= min(counts) <= 3  # a text that is there three times stays together


def test_a_single_text_is_split_by_position(tmp_path):
    text = "".join(f"{i} é\n" for i in range(1000))
    (tmp_path / "book").write_text(text)
    prepare([tmp_path / "book"], tmp_path / "out", None, 0.1)
    folder = open_folder(tmp_path / "out")
    train, validation = (texts(folder, name, load_tokenizer(None))[0] for name in ("train", "validation"))
    assert train + validation == text
    assert len(validation) == round(len(text) * 0.1)


def test_the_same_files_give_the_same_bytes(corpus, tmp_path):
    for name in ("one", "two"):
        prepare([corpus], tmp_path / name, None, 0.2)
    assert (tmp_path / "one" / "header.json").read_bytes() == (tmp_path / "two" / "header.json").read_bytes()
    file = tmp_path / "one" / "train-00000.bin"
    header = open_folder(tmp_path / "one").header
    assert header["files"][file.name]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("content", "fraction", "message"),
    [
        (b"\0binary", 0.1, r"x: binary file \(NUL byte at offset 0\)"),
        (b"", 0.1, "there is no text in the 1 files given"),
        (b"a", 0.1, "only one character"),
        (b"text", 0.0, r"validation_fraction=0.0: must lie in \(0, 1\)"),
        (b"text", 1.0, r"validation_fraction=1.0: must lie in \(0, 1\)"),
    ],
)
def test_what_cannot_be_prepared_leaves_nothing(tmp_path, content, fraction, message):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UserError, match=message):
        prepare([tmp_path / "x"], tmp_path / "out", None, fraction)
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_missing_input_and_an_existing_output(corpus, tmp_path):
    with pytest.raises(UserError, match=r"^/.*/corpos: no such file or folder; did you mean 'corpus'"):
        prepare([tmp_path / "corpos"], tmp_path / "out", None, 0.1)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("precious")
    with pytest.raises(UserError, match="out exists already"):
        prepare([corpus], tmp_path / "out", None, 0.1)
    assert (tmp_path / "out" / "mine").read_text() == "precious"
