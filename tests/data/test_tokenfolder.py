"""Folders of tokens: what is written is read back, over any number of files, and damage is named."""

import json
import pickle
import re

import numpy as np
import pytest

from k3lab.config.errors import UserError
from k3lab.data.tokenfolder import TokenWriter, header_hash, new_folder, open_folder
from k3lab.data.tokenize import ByteTokenizer


class Wide(ByteTokenizer):
    vocab_size = 70_000
    separator = 69_999


def write(folder, documents, tokenizer=None, file_tokens=20):
    with new_folder(folder) as draft:
        writer = TokenWriter(draft, tokenizer or ByteTokenizer(), file_tokens)
        for side, text in documents:
            writer.add(side, np.frombuffer(text.encode(), np.uint8), len(text))
        writer.close({"made by": "a test"})
    return open_folder(folder, verify=True)


DOCUMENTS = [("train", "hello"), ("validation", "held out"), ("train", "a longer document, alone"), ("train", "x")] * 5


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "tokens", DOCUMENTS)


@pytest.mark.parametrize(("tokenizer", "dtype"), [(ByteTokenizer(), "uint16"), (Wide(), "uint32")])
def test_what_is_written_is_read_back(tmp_path, tokenizer, dtype):
    folder = write(tmp_path / "tokens", DOCUMENTS, tokenizer)
    assert folder.header["dtype"] == dtype
    for name in ("train", "validation"):
        texts = [text for side, text in DOCUMENTS if side == name]
        line = [i for text in texts for i in (tokenizer.separator, *text.encode())]
        side = folder.side(name)
        assert len(side) == len(line) == folder.header[name]["tokens"]
        assert len(side.files) >= 2
        for start in range(0, len(line), 7):
            for stop in (start, start + 1, start + 30, len(line)):
                assert side.read(start, min(stop, len(line))).tolist() == line[start:stop]
        starts = side.starts()
        assert starts.dtype == np.int64
        assert starts.tolist() == [i for i, token in enumerate(line) if token == tokenizer.separator]
        assert folder.header[name]["documents"] == len(texts)
        assert folder.header[name]["bytes"] == sum(map(len, texts))


def test_a_document_lies_in_one_file(folder):
    for file in folder.header["train"]["files"]:
        tokens = np.fromfile(folder.path / file, "<u2")
        starts = np.fromfile(folder.path / file.replace(".bin", ".starts"), "<u8")
        assert tokens[0] == 256
        assert starts.tolist() == np.flatnonzero(tokens == 256).tolist()


def test_another_process_gets_names_and_no_tokens(folder):
    side = folder.side("train")
    before = side.read(3, 40)
    sent = pickle.dumps(side)
    assert len(sent) < 2000
    assert np.array_equal(pickle.loads(sent).read(3, 40), before)


def test_the_bytes_do_not_depend_on_when_or_where(tmp_path, folder):
    again = write(tmp_path / "elsewhere" / "deep", DOCUMENTS)
    assert again.header == folder.header


def fill_and_raise(folder, error):
    with new_folder(folder) as draft:
        (draft / "half").write_text("x")
        raise error


def make_empty(folder):
    with new_folder(folder):
        pass


def test_a_failure_leaves_nothing_behind(tmp_path):
    with pytest.raises(RuntimeError):
        fill_and_raise(tmp_path / "tokens", RuntimeError())
    with pytest.raises(UserError, match=r"tokens: cannot be written: No space left on device"):
        fill_and_raise(tmp_path / "tokens", OSError(28, "No space left on device"))
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_left_alone(tmp_path, folder):
    with pytest.raises(UserError, match=r"tokens exists already: remove it, or choose another folder"):
        make_empty(folder.path)
    open_folder(folder.path, verify=True)
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", DOCUMENTS)
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match=r"exists already|cannot be written"):
            make_empty(path)


def edit_header(folder, sign=True, **changes):
    header = {**folder.header, **changes}
    header = {key: value for key, value in header.items() if value is not None}
    if sign:
        header["sha256"] = header_hash(header)
    (folder.path / "header.json").write_text(json.dumps(header))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f.path / "train-00001.bin").unlink(), "train-00001.bin is missing: remove the folder"),
        (lambda f: (f.path / "train-00000.starts").write_bytes(b""), "starts has 0 bytes and must have [1-9]"),
        (lambda f: (f.path / "header.json").unlink(), "is no folder of tokens: it has no header.json; `k3lab data"),
        (lambda f: (f.path / "header.json").write_text("{"), "header.json is damaged: "),
        (lambda f: (f.path / "header.json").write_text("[]"), "header.json is not of the format k3lab-tokens-1"),
        (lambda f: edit_header(f, format="other"), "header.json is not of the format k3lab-tokens-1"),
        (lambda f: edit_header(f, sign=False, separator=3), "header.json is damaged: its checksum"),
        (lambda f: edit_header(f, separator=None), "it lacks 'separator'"),
    ],
)
def test_damage_is_named(folder, damage, message):
    damage(folder)
    with pytest.raises(UserError, match=message) as caught:
        open_folder(folder.path)
    assert "\n" not in str(caught.value)


def test_changed_tokens_are_found_when_asked(folder):
    file = folder.path / "validation-00000.bin"
    content = bytearray(file.read_bytes())
    content[5] ^= 1
    file.write_bytes(content)
    open_folder(folder.path)
    with pytest.raises(UserError, match=re.escape(f"{file} is damaged: its checksum does not match")):
        open_folder(folder.path, verify=True)


def test_a_missing_folder_names_the_nearest(folder):
    with pytest.raises(UserError, match=r"/tokns: no such folder; did you mean 'tokens'\?"):
        open_folder(folder.path.with_name("tokns"))
