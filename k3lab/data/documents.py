"""Documents of text files: a file is one document, or, in JSON Lines, every line is one under the key `text`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from k3lab.config.errors import UserError
from k3lab.data.corpus import text_fault
from k3lab.data.files import find_files, shown

LINES = (".jsonl", ".ndjson")


def document_files(paths: Iterable[Path]) -> list[Path]:
    """All files of some files and folders, sorted within each folder, hidden ones passed over; UserError if none."""
    try:
        return find_files([str(path) for path in paths], "*")
    except UserError as error:  # speaks of the setting that these paths usually come from
        raise UserError(str(error).removeprefix("data.path").lstrip("=: ")) from error


def read_documents(files: Iterable[Path]) -> Iterator[str]:
    """Texts of all documents that are not empty, in order; UserError for what is no text."""
    for file in files:
        yield from _lines(file) if file.suffix.lower() in LINES else _whole(file)


def _whole(file: Path) -> Iterator[str]:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {shown(file)}: {error.strerror}") from error
    if fault := text_fault(np.frombuffer(data, dtype=np.uint8)):
        raise UserError(f"{shown(file)}: {fault}; allowed: UTF-8 text without NUL")
    if data:
        yield data.decode("utf-8")


def _lines(file: Path) -> Iterator[str]:
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip() and (text := _text(line, f"{shown(file)}, line {number}")):
                    yield text
    except OSError as error:
        raise UserError(f"cannot read {shown(file)}: {error.strerror}") from error


def _text(line: bytes, where: str) -> str:
    try:
        record = json.loads(line)
        text = record["text"]
        text.encode("utf-8")  # JSON can spell half of a surrogate pair, which is no text
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{where}: must be a JSON object with a text under the key 'text'") from error
    return text
