"""Tokenizers: bytes, a trained vocabulary, foreign vocabularies, and a missing library."""

import os
import subprocess
import sys

import numpy as np
import pytest

from k3lab.config.errors import UserError
from k3lab.data.tokenize import ByteTokenizer, load_tokenizer, split_text, train_bpe

SAMPLES = ["plain words", "é 語 🙂\r\n\t  x", "def f(x):\n    return x  # twice\n\n\n", " ", "<|document|>"]


@pytest.fixture
def corpus(tmp_path):
    lines = [f"def function_{i}(value):\n    return value + {i}\n" for i in range(200)]
    (tmp_path / "code.py").write_text("\n".join(lines))
    (tmp_path / "more.jsonl").write_text('{"text": "hello there, hello world"}\n\n{"text": ""}\n' * 3)
    return [tmp_path / "code.py", tmp_path / "more.jsonl"]


@pytest.fixture
def vocabulary(corpus, tmp_path):
    pytest.importorskip("tokenizers")
    size = train_bpe(corpus, 320, tmp_path / "deep" / "tokenizer.json")
    assert size == 320
    return tmp_path / "deep" / "tokenizer.json"


def test_bytes_round_trip():
    tokenizer = ByteTokenizer()
    assert (tokenizer.vocab_size, tokenizer.separator) == (257, 256)
    for text, ids in zip(SAMPLES, tokenizer.encode(SAMPLES), strict=True):
        assert bytes(ids.tolist()) == text.encode()
        assert tokenizer.decode(ids.tolist()) == text
    assert tokenizer.encode([os.fsdecode(b"\xff")])[0].tolist() == [255]
    assert tokenizer.decode([256, 65, 256, 66, 300]) == "A\n\nB\ufffd"


def test_bpe_round_trips_every_text_with_fewer_tokens(vocabulary):
    tokenizer = load_tokenizer(vocabulary)
    assert tokenizer.vocab_size == 320
    for text, ids in zip(SAMPLES, tokenizer.encode(SAMPLES), strict=True):
        assert tokenizer.separator not in ids  # not even for the text that spells it
        assert ids.max() < 320
        assert tokenizer.decode(ids.tolist()) == text
    code = "def function_7(value):\n    return value + 7\n"
    assert len(tokenizer.encode([code])[0]) < len(code) / 2
    s = tokenizer.separator
    assert tokenizer.decode([s, *tokenizer.encode(["a"])[0], s, *tokenizer.encode(["b"])[0]]) == "a\n\nb"


def test_the_same_files_give_the_same_vocabulary(corpus, vocabulary, tmp_path):
    train_bpe(corpus, 320, tmp_path / "again.json")
    (tmp_path / "folder").mkdir()
    for file in corpus:
        file.rename(tmp_path / "folder" / file.name)
    train_bpe([tmp_path / "folder"], 320, tmp_path / "third.json")
    assert (tmp_path / "third.json").read_bytes() == vocabulary.read_bytes()
    assert (tmp_path / "again.json").read_bytes() == vocabulary.read_bytes()
    assert [p.name for p in vocabulary.parent.iterdir()] == ["tokenizer.json"]


def test_a_saved_tokenizer_is_the_same(vocabulary, tmp_path):
    folder = tmp_path / "saved"
    folder.mkdir()
    assert load_tokenizer(vocabulary).save(folder) == "tokenizer.json"
    assert load_tokenizer(folder / "tokenizer.json").encode(SAMPLES)[1].tolist() == (
        load_tokenizer(vocabulary).encode(SAMPLES)[1].tolist()
    )
    assert ByteTokenizer().save(folder) == "bytes"


BETWEEN = ["\n", "\n\n", "\n    ", " \n", "\r\n", "\n \n\n", "\n\n\t"]


def test_long_texts_are_cut_where_no_token_is(vocabulary, monkeypatch):
    text = "".join(f"line {i}, some text.{'!' * (i % 2)}{BETWEEN[i % len(BETWEEN)]}" for i in range(700))
    whole = load_tokenizer(vocabulary).encode([text, "short"])
    monkeypatch.setattr("k3lab.data.tokenize.PIECE", 30)
    cut = load_tokenizer(vocabulary).encode([text, "short"])
    assert len(list(split_text(text, 30))) > 200
    for a, b in zip(whole, cut, strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize(
    "text", ["", "x", "abc\n" * 10, "no end" * 20, "\n" * 40, "a \nb" * 20, "one\ntwo\n", "\n\na" * 9]
)
@pytest.mark.parametrize("longest", [1, 7])
def test_pieces_make_the_whole(text, longest):
    pieces = list(split_text(text, longest))
    assert "".join(pieces) == text
    assert all(pieces) or text == ""


def test_a_vocabulary_from_elsewhere_has_its_own_separator(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    foreign = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    foreign.save(str(tmp_path / "none.json"))
    with pytest.raises(UserError, match=r"none.json has no token to begin a document with: must have one of .*<s>"):
        load_tokenizer(tmp_path / "none.json")
    foreign.add_special_tokens(["<s>", "</s>"])
    foreign.enable_truncation(1)
    foreign.save(str(tmp_path / "foreign.json"))
    tokenizer = load_tokenizer(tmp_path / "foreign.json")
    assert (tokenizer.separator, tokenizer.vocab_size) == (2, 4)
    assert tokenizer.encode(["abba"])[0].tolist() == [0, 1, 1, 0]


def test_what_is_no_tokenizer(tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(UserError, match=r"bad.json is no tokenizer.json: ") as caught:
        load_tokenizer(tmp_path / "bad.json")
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"gone.json: cannot be read: No such file"):
        load_tokenizer(tmp_path / "gone.json")


def test_training_refuses_what_it_cannot_do(corpus, vocabulary, tmp_path):
    with pytest.raises(UserError, match="vocab_size=256: must be at least 257"):
        train_bpe(corpus, 256, tmp_path / "new.json")
    with pytest.raises(UserError, match=r"tokenizer.json exists already"):
        train_bpe(corpus, 300, vocabulary)
    (tmp_path / "binary").write_bytes(b"\0\1")
    with pytest.raises(UserError, match=r"binary file \(NUL byte at offset 0\)"):
        train_bpe([tmp_path / "binary"], 300, tmp_path / "new.json")
    assert not (tmp_path / "new.json").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"x.json: cannot be written: "):
        train_bpe(corpus, 300, tmp_path / "file" / "x.json")


def test_without_the_library_one_line_says_what_to_install(corpus, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    line = r"^byte-pair encoding needs the library 'tokenizers': pip install 'k3lab\[bpe\]'$"
    with pytest.raises(UserError, match=line):
        train_bpe(corpus, 300, tmp_path / "new.json")
    with pytest.raises(UserError, match=line):
        load_tokenizer(tmp_path / "any.json")
    assert load_tokenizer(None).vocab_size == 257


def test_forking_after_encoding_warns_of_nothing(vocabulary):
    code = (
        "import os, sys; from pathlib import Path; from k3lab.data.tokenize import load_tokenizer\n"
        f"load_tokenizer(Path({str(vocabulary)!r})).encode(['text'] * 100)\n"
        "os._exit(0) if os.fork() == 0 else os.wait()"
    )
    env = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=env,
    )
    assert done.stderr == ""
