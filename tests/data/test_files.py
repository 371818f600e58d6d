"""From data.path to files: what is found, and one clear line for what is not."""

import os
import sysconfig
from pathlib import Path

import pytest

from k3lab.config.errors import UserError
from k3lab.data.files import find_files, library_files, shown


def make(folder, *names):
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)


def names(folder, *paths, pattern="*"):
    return [f.relative_to(folder).as_posix() for f in find_files([str(p) for p in paths], pattern)]


def test_folders_are_searched_in_a_fixed_order_and_hidden_files_passed_over(tmp_path):
    make(tmp_path, "b.txt", "a/z.txt", "a/b/c.md", ".git/x", "a/.hidden", "__pycache__/m.pyc")
    assert names(tmp_path, tmp_path) == ["a/b/c.md", "a/z.txt", "b.txt"]


def test_patterns_match_names_and_relative_paths(tmp_path):
    make(tmp_path, "b.txt", "a/z.txt", "a/y.md")
    assert names(tmp_path, tmp_path, pattern="*.txt") == ["a/z.txt", "b.txt"]
    assert names(tmp_path, tmp_path, pattern="a/*") == ["a/y.md", "a/z.txt"]


def test_a_file_reached_twice_counts_once_and_links_in_a_circle_end(tmp_path):
    make(tmp_path, "a/x.txt", "b/y.txt")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "b" / "same.txt").symlink_to(tmp_path / "a" / "x.txt")
    found = find_files([str(tmp_path / "a" / "x.txt"), str(tmp_path), str(tmp_path / "b")], "*")
    assert sorted(Path(os.path.realpath(f)).name for f in found) == ["x.txt", "y.txt"]


def test_a_file_named_directly_needs_no_pattern(tmp_path):
    make(tmp_path, ".notes")
    assert names(tmp_path, tmp_path / ".notes", pattern="*.py") == [".notes"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("corpos", r"data.path=.*/corpos: no such file or folder; did you mean 'corpus'\?$"),
        ("corpos/deep/file.txt", r"\(.*/corpos does not exist\); did you mean 'corpus'\?$"),
        ("corpus/a.txt/b", r"corpus/a.txt/b: no such file or folder"),
        ("empty", r"data.path=.*/empty: the folder holds no files"),
        ("pipe", r"data.path=.*/pipe: must be a regular file or a folder"),
    ],
)
def test_paths_that_hold_no_corpus(tmp_path, path, message):
    make(tmp_path, "corpus/a.txt")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=message) as caught:
        find_files([str(tmp_path / path)], "*")
    assert "\n" not in str(caught.value)


def test_a_pattern_without_a_match_names_a_file_that_is_there(tmp_path):
    make(tmp_path, "a.txt", "b.txt")
    with pytest.raises(UserError, match=r"data.pattern=\*.md: matches none of the 2 files in .*, such as a.txt$"):
        find_files([str(tmp_path)], "*.md")


def test_an_unreadable_folder_is_no_empty_folder(tmp_path, monkeypatch):
    make(tmp_path, "a/x.txt", "locked/y.txt")
    scandir = os.scandir

    def guarded(path):
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)  # the tests may run as root, whom no mode stops
    with pytest.raises(UserError, match=r"cannot read .*/locked: Permission denied"):
        find_files([str(tmp_path)], "*")


def test_any_file_name_is_shown_on_one_line(tmp_path):
    assert shown(Path(os.fsdecode(b"a\xff\nb"))) == "a\ufffd\ufffdb"


def test_the_library_is_sources_alone():
    files = library_files()
    root = Path(sysconfig.get_path("stdlib"))
    relative = [f.relative_to(root) for f in files]
    assert Path("argparse.py") in relative
    assert Path("json/decoder.py") in relative
    assert all(p.suffix == ".py" for p in relative)
    assert not any(part in ("site-packages", "test", "tests", "__pycache__") for p in relative for part in p.parts)
    assert files == library_files()


def test_no_library_is_an_error_that_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path / "python311.zip"))
    with pytest.raises(UserError, match=r"data.path=null: no Python sources in .*; set data.path"):
        library_files()


def test_a_link_to_nothing_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match="is a link to nothing"):
        find_files([str(tmp_path / "link")], "*")
