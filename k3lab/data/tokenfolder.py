"""A folder of token ids on disk: how it is written whole or not at all, checked, and read without loading it.

    FOLDER/header.json              what follows below
           tokenizer.json           only where the tokenizer is not bytes
           train-00000.bin          token ids, little-endian, uint16 up to 65536 ids and uint32 beyond
           train-00000.starts       place of each document's first token in that file, little-endian uint64
           validation-00000.bin …   likewise

A document is the separator's id followed by the ids of its text, and lies in one file. header.json:

    format      "k3lab-tokens-1"
    dtype       "uint16" or "uint32"
    vocab_size  all ids are below it
    separator   the id that begins each document
    tokenizer   "bytes", or the name of the tokenizer's file in the folder
    source      what the tokens were made from, for people
    train, validation
                {"documents", "tokens" (separators too), "bytes" (of the texts as UTF-8), "files": [names of .bin]}
    files       {name: {"bytes": size, "sha256"}} of every file but this
    sha256      of the header without this entry, as JSON with sorted keys and no spaces
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from k3lab.config.errors import UserError, nearest
from k3lab.data.files import shown
from k3lab.data.tokenize import Tokenizer

FORMAT = "k3lab-tokens-1"
HEADER = "header.json"
KEYS = ("dtype", "vocab_size", "separator", "tokenizer", "files")
SIDES = ("train", "validation")
FILE_TOKENS = 1 << 28  # a file is closed when it has this many: a few hundred MB are easy to copy and to check


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A draft to fill, which becomes `folder` at the end of the block and vanishes if the block raises.

    UserError: `folder` exists and is not empty, or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{shown(folder)} exists already: remove it, or choose another folder")
    draft = folder.with_name(f".tmp-{folder.name}-{secrets.token_hex(4)}")
    try:
        draft.mkdir(parents=True)
        yield draft
        _sync(draft)
        draft.rename(folder)
        _sync(folder.parent)
    except OSError as error:
        raise UserError(f"{shown(folder)}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


class TokenWriter:
    """Writes documents into the files of a draft; `close` writes the header that makes them readable."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, file_tokens: int = FILE_TOKENS) -> None:
        self.folder, self.tokenizer = folder, tokenizer
        self.file_tokens = file_tokens
        self.dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")
        self.totals: dict[str, dict[str, Any]] = {
            side: {"documents": 0, "tokens": 0, "bytes": 0, "files": []} for side in SIDES
        }
        self._open: dict[str, _File] = {}
        self._checksums: dict[str, dict[str, Any]] = {}

    def add(self, side: str, ids: np.ndarray, size: int) -> None:
        """Append a document of `size` bytes; ids [n] without separator."""
        total = self.totals[side]
        if side not in self._open:
            name = f"{side}-{len(total['files']):05d}"
            self._open[side] = _File(self.folder, name)
            total["files"].append(f"{name}.bin")
        document = np.empty(len(ids) + 1, dtype=self.dtype)
        document[0], document[1:] = self.tokenizer.separator, ids
        file = self._open[side]
        file.add(document)
        total["documents"] += 1
        total["tokens"] += len(document)
        total["bytes"] += size
        if file.tokens >= self.file_tokens:
            self._checksums |= self._open.pop(side).close()

    def close(self, source: dict[str, Any]) -> None:
        """Finish all files and write the header."""
        for file in self._open.values():
            self._checksums |= file.close()
        name = self.tokenizer.save(self.folder)
        if (saved := self.folder / name).is_file():
            _sync(saved)
            self._checksums[name] = {"bytes": saved.stat().st_size, "sha256": _file_hash(saved)}
        header = {
            "format": FORMAT,
            "dtype": "uint16" if self.dtype.itemsize == 2 else "uint32",
            "vocab_size": self.tokenizer.vocab_size,
            "separator": self.tokenizer.separator,
            "tokenizer": name,
            "source": source,
            **self.totals,
            "files": dict(sorted(self._checksums.items())),
        }
        header["sha256"] = header_hash(header)
        with (self.folder / HEADER).open("w", encoding="utf-8") as out:
            json.dump(header, out, indent=1)
            out.flush()
            os.fsync(out.fileno())


class _File:
    """One .bin and its .starts being written."""

    def __init__(self, folder: Path, name: str) -> None:
        self.tokens = 0
        self._parts = [_Part(folder / f"{name}.bin"), _Part(folder / f"{name}.starts")]

    def add(self, document: np.ndarray) -> None:
        self._parts[0].write(document.data)
        self._parts[1].write(np.array([self.tokens], dtype="<u8").data)
        self.tokens += len(document)

    def close(self) -> dict[str, dict[str, Any]]:
        return {part.path.name: part.close() for part in self._parts}


class _Part:
    """A file whose checksum is made while it is written."""

    def __init__(self, path: Path) -> None:
        self.path, self.size, self.digest = path, 0, hashlib.sha256()
        self.out: BinaryIO = path.open("wb", buffering=1 << 20)

    def write(self, data: memoryview) -> None:
        self.out.write(data)
        self.digest.update(data)
        self.size += data.nbytes

    def close(self) -> dict[str, Any]:
        self.out.flush()
        os.fsync(self.out.fileno())
        self.out.close()
        return {"bytes": self.size, "sha256": self.digest.hexdigest()}


@dataclass(frozen=True)
class TokenFolder:
    """An existing folder whose header has been checked."""

    path: Path
    header: dict[str, Any]

    def side(self, name: str) -> TokenArray:
        """All tokens of `train` or `validation`."""
        counts = [self.header["files"][file]["bytes"] for file in self.header[name]["files"]]
        return TokenArray(self.path, self.header["dtype"], self.header[name]["files"], counts)


def open_folder(path: Path, verify: bool = False) -> TokenFolder:
    """Check header and sizes, with `verify` also the checksum of every file; UserError says what is wrong."""
    if not path.is_dir():
        names = [p.name for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
        raise UserError(f"{shown(path)}: no such folder{nearest(path.name, names)}")
    file = path / HEADER
    if not file.is_file():
        raise UserError(f"{shown(path)} is no folder of tokens: it has no {HEADER}; `k3lab data prepare` makes one")
    try:
        header = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{shown(file)} is damaged: {' '.join(str(error).split())}") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise UserError(f"{shown(file)} is not of the format {FORMAT}")
    if header.get("sha256") != header_hash(header):
        raise UserError(f"{shown(file)} is damaged: its checksum does not match")
    missing = [key for key in (*KEYS, *SIDES) if key not in header]
    if missing:
        raise UserError(f"{shown(file)} is not of the format {FORMAT}: it lacks '{missing[0]}'")
    for name, entry in header["files"].items():
        part = path / name
        size = part.stat().st_size if part.is_file() else None
        if size != entry["bytes"]:
            what = "is missing" if size is None else f"has {size} bytes and must have {entry['bytes']}"
            raise UserError(f"{shown(part)} {what}: remove the folder and make it again")
        if verify and _file_hash(part) != entry["sha256"]:
            raise UserError(
                f"{shown(part)} is damaged: its checksum does not match; remove the folder and make it again"
            )
    return TokenFolder(path, header)


class TokenArray:
    """Tokens of one side as one line over all its files, read where they are asked for.

    The files are mapped in the process that reads them: sent to another one, this carries only their names.
    """

    def __init__(self, folder: Path, dtype: str, files: list[str], sizes: list[int]) -> None:
        self.folder, self.files = folder, files
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.ends = np.cumsum([size // self.dtype.itemsize for size in sizes], dtype=np.int64)
        self._maps: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens start..stop-1, [stop − start]; they may lie in several files."""
        assert 0 <= start <= stop <= len(self)
        pieces = []
        file = int(np.searchsorted(self.ends, start, side="right"))
        while start < stop:
            before = int(self.ends[file - 1]) if file else 0
            end = min(stop, int(self.ends[file]))
            pieces.append(self._map(file)[start - before : end - before])
            start, file = end, file + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, self.dtype), *pieces])

    def starts(self) -> np.ndarray:
        """Place of each document's first token, int64 [documents], ascending."""
        parts = [np.empty(0, dtype=np.int64)]
        for index, name in enumerate(self.files):
            own = np.fromfile(self.folder / f"{Path(name).stem}.starts", dtype="<u8").astype(np.int64)
            parts.append(own + (int(self.ends[index - 1]) if index else 0))
        return np.concatenate(parts)

    def _map(self, file: int) -> np.ndarray:
        if file not in self._maps:
            self._maps[file] = np.memmap(self.folder / self.files[file], dtype=self.dtype, mode="r")
        return self._maps[file]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": {}}


def header_hash(header: dict[str, Any]) -> str:
    """SHA-256 of a header without its own entry."""
    plain = {key: value for key, value in header.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _file_hash(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
