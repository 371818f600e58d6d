"""Documents: one a file or one a line, and one clear line for what is none."""

import pytest

from k3lab.config.errors import UserError
from k3lab.data.documents import document_files, read_documents


def test_files_and_lines(tmp_path):
    (tmp_path / "a.txt").write_bytes("é\r\nb".encode())
    (tmp_path / "b.jsonl").write_text('{"text": "one", "id": 3}\n\n  \n{"text": ""}\n{"text": "tw\\no"}')
    (tmp_path / "c.NDJSON").write_text('{"text": "three"}\n')
    (tmp_path / "d.json").write_text('{"text": "a file"}')
    (tmp_path / "empty").write_text("")
    (tmp_path / ".hidden").write_text("hidden")
    files = document_files([tmp_path])
    assert list(read_documents(files)) == ["é\r\nb", "one", "tw\no", "three", '{"text": "a file"}']


@pytest.mark.parametrize("line", ["[1]", '"text"', "{", '{"txt": "x"}', '{"text": 3}', '{"text": "\\ud800"}', "\ufffd"])
def test_lines_that_hold_no_text(tmp_path, line):
    file = tmp_path / "x.jsonl"
    file.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(UserError, match=r"x.jsonl, line 2: must be a JSON object with a text under the key 'text'$"):
        list(read_documents([file]))


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "x").write_bytes(b"ab\xff")
    with pytest.raises(UserError, match=r"/x: no UTF-8 text \(byte 0xff at offset 2\); allowed: UTF-8"):
        list(read_documents([tmp_path / "x"]))
    with pytest.raises(UserError, match=r"^cannot read .*/gone: No such file"):
        list(read_documents([tmp_path / "gone"]))
    with pytest.raises(UserError, match=r"^cannot read .*/gone.jsonl: No such file"):
        list(read_documents([tmp_path / "gone.jsonl"]))


def test_paths_that_are_not_there_name_no_setting(tmp_path):
    (tmp_path / "corpus").mkdir()
    with pytest.raises(UserError, match=r"^/.*/corpos: no such file or folder; did you mean 'corpus'\?$"):
        document_files([tmp_path / "corpos"])
    with pytest.raises(UserError, match=r"^/.*/corpus: the folder holds no files"):
        document_files([tmp_path / "corpus"])
