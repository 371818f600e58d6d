"""Reading and splitting: by file, by content, and refusing what is no text."""

import numpy as np
import pytest

from k3lab.config.errors import UserError
from k3lab.data.corpus import entropy_bits, read_corpus, text_fault


def write(folder, **contents):
    files = []
    for name, content in contents.items():
        file = folder / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        files.append(file)
    return files


def many(folder, count=60):
    return write(folder, **{f"f{i:03}": f"file {i} " * 20 for i in range(count)})


def sides(corpus):
    return {f.name for f in corpus.train_files}, {f.name for f in corpus.validation_files}


def test_the_sides_share_no_file_and_lose_no_byte(tmp_path):
    files = many(tmp_path)
    corpus = read_corpus(files, 0.2, 9, raw=False)
    train, validation = sides(corpus)
    assert not train & validation
    assert train | validation == {f.name for f in files}
    assert 3 <= len(validation) <= 24
    assert corpus.train.tobytes() == b"".join(f.read_bytes() for f in corpus.train_files)
    assert corpus.validation.tobytes() == b"".join(f.read_bytes() for f in corpus.validation_files)


def test_a_file_keeps_its_side_when_others_come_and_go_or_names_change(tmp_path):
    files = many(tmp_path)
    _, validation = sides(read_corpus(files, 0.2, 9, raw=False))
    _, half = sides(read_corpus(files[::2], 0.2, 9, raw=False))
    assert half == validation & {f.name for f in files[::2]}
    content = {f.read_bytes() for f in files if f.name in validation}
    renamed = [f.rename(f.with_name(f"zz{len(files) - i:03}")) for i, f in enumerate(files)]
    again = read_corpus(renamed[::-1], 0.2, 9, raw=False)
    assert {f.read_bytes() for f in again.validation_files} == content


def test_copies_of_a_file_are_on_one_side(tmp_path):
    files = write(tmp_path, **{f"f{i}": f"text {i % 20} " * 20 for i in range(60)})
    corpus = read_corpus(files, 0.3, 9, raw=False)
    train = {f.read_bytes() for f in corpus.train_files}
    assert not train & {f.read_bytes() for f in corpus.validation_files}


def test_there_is_always_a_file_on_each_side(tmp_path):
    files = write(tmp_path, small="small text " * 10, large="large text " * 1000)
    for fraction in (0.0001, 0.9999):
        corpus = read_corpus(files, fraction, 9, raw=False)
        assert len(corpus.train)
        assert len(corpus.validation)
    corpus = read_corpus(files, 0.0001, 9, raw=False)
    assert sides(corpus) == ({"large"}, {"small"})
    assert corpus.notes == ()


def test_a_single_file_is_split_by_position_and_says_so(tmp_path):
    text = "".join(f"{i} " for i in range(2000))
    corpus = read_corpus(write(tmp_path, one=text), 0.1, 9, raw=False)
    assert corpus.train.tobytes() + corpus.validation.tobytes() == text.encode()
    assert len(corpus.validation) == round(len(text) * 0.1)
    (note,) = corpus.notes
    assert f"the last {len(corpus.validation)} bytes of {tmp_path}/one are validation" in note


def test_a_large_file_beside_tiny_ones_is_split_by_position(tmp_path):
    corpus = read_corpus(write(tmp_path, a="x", big="y" * 1000, c="z"), 0.1, 65, raw=False)
    assert corpus.train.tobytes() == b"x" + b"y" * 900 + b"z"
    assert corpus.validation.tobytes() == b"y" * 100


def test_copies_of_the_only_text_stay_out_of_training(tmp_path):
    text = "".join(f"{i} " for i in range(400))
    corpus = read_corpus(write(tmp_path, a=text, b=text), 0.1, 9, raw=False)
    assert corpus.train.tobytes() + corpus.validation.tobytes() == text.encode()


def test_a_split_by_position_does_not_cut_a_character(tmp_path):
    for text in ("é" * 501, "x" + "é" * 501, "語" * 333 + "x"):
        corpus = read_corpus(write(tmp_path, one=text), 0.1, 9, raw=False)
        corpus.train.tobytes().decode()
        corpus.validation.tobytes().decode()


def test_line_ends_and_byte_order_marks_are_data(tmp_path):
    content = b"\xef\xbb\xbfone\r\ntwo\rthree\n" * 20
    corpus = read_corpus(write(tmp_path, one=content), 0.1, 9, raw=False)
    assert corpus.train.tobytes() + corpus.validation.tobytes() == content


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"abc\0def", "binary file (NUL byte at offset 3)"),
        (b"abc\xffdef", "no UTF-8 text (byte 0xff at offset 3)"),
        (b"ab\xc3", "no UTF-8 text (byte 0xc3 at offset 2)"),
        (b"\xed\xa0\x80", "no UTF-8 text (byte 0xed at offset 0)"),
        ("ok é 語 🙂".encode(), None),
        (b"", None),
    ],
)
@pytest.mark.parametrize("chunk", [1 << 22, 5])
def test_what_is_text(monkeypatch, content, fault, chunk):
    monkeypatch.setattr("k3lab.data.corpus._CHUNK", chunk)
    before = b"abcd\xc3\xa9fgh" * 3
    if fault is None:
        assert text_fault(np.frombuffer(before + content, np.uint8)) is None
    else:
        head, offset = fault.rsplit(" ", 1)
        moved = f"{head} {int(offset.rstrip(')')) + len(before)})"
        assert text_fault(np.frombuffer(before + content, np.uint8)) == moved


def test_binary_files_are_refused_by_name_unless_raw(tmp_path):
    files = write(tmp_path, a="text " * 50, b=b"\x7fELF\0" * 50)
    with pytest.raises(UserError, match=r"^\S*/b: binary file \(NUL byte at offset 4\); allowed: .*data.raw=true$"):
        read_corpus(files, 0.1, 9, raw=False)
    corpus = read_corpus(files, 0.1, 9, raw=True)
    assert len(corpus.train) + len(corpus.validation) == 500
    tolerant = read_corpus(files, 0.1, 9, raw=False, tolerant=True)
    assert "left out" in tolerant.notes[0]
    assert "NUL byte at offset 4" in tolerant.notes[0]
    assert b"\0" not in tolerant.train.tobytes()


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"a": "", "b": ""}, r"data.path: the corpus is empty \(2 files, 0 bytes of text\)"),
        ({"a": "short"}, r"data.seq_len=64: the training text has 3 bytes and must have at least seq_len \+ 1 = 65"),
        ({"a": "x" * 80}, r"data.seq_len=64: the training text has 40 bytes"),
    ],
)
def test_too_little_text(tmp_path, contents, message):
    with pytest.raises(UserError, match=message):
        read_corpus(write(tmp_path, **contents), 0.1, 65, raw=False)


def test_the_smallest_corpus_that_is_enough(tmp_path):
    corpus = read_corpus(write(tmp_path, a="x" * 130), 0.1, 65, raw=False)
    assert (len(corpus.train), len(corpus.validation)) == (65, 65)


def test_unreadable_vanished_and_growing_files(tmp_path, monkeypatch):
    files = write(tmp_path, a="text " * 50, b="other " * 50)

    def denied(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(type(files[0]), "open", denied)  # the tests may run as root, whom no mode stops
        with pytest.raises(UserError, match=r"cannot read .*/a: Permission denied"):
            read_corpus(files, 0.1, 9, raw=False)
    with pytest.raises(UserError, match=r"/gone is gone: No such file"):
        read_corpus([*files, tmp_path / "gone"], 0.1, 9, raw=False)
    grown = type("Grown", (), {"st_size": 10})
    with monkeypatch.context() as patch:
        patch.setattr(type(files[0]), "stat", lambda *_a, **_k: grown)
        with pytest.raises(UserError, match=r"/a changes while it is read"):
            read_corpus(files, 0.1, 9, raw=False)


def test_the_fingerprint_follows_the_bytes_and_the_split(tmp_path):
    files = many(tmp_path, 20)
    first = read_corpus(files, 0.2, 9, raw=False).fingerprint
    assert read_corpus(files, 0.2, 9, raw=False).fingerprint == first
    assert read_corpus(files, 0.5, 9, raw=False).fingerprint != first
    files[3].write_bytes(files[3].read_bytes().swapcase())
    assert read_corpus(files, 0.2, 9, raw=False).fingerprint != first


def test_entropy(monkeypatch):
    monkeypatch.setattr("k3lab.data.corpus._CHUNK", 7)
    assert entropy_bits(np.frombuffer(b"aaaa", np.uint8)) == 0
    assert entropy_bits(np.arange(256, dtype=np.uint8)) == pytest.approx(8)
    assert entropy_bits(np.frombuffer(b"aabc" * 5, np.uint8)) == pytest.approx(1.5)
