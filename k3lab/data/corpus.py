"""Files read into two byte arrays: training and validation text, split by file.

A file's side follows from a hash of its content: adding, renaming or reordering files moves none
of the others, and copies of a file are never on both sides. Torch-free.
"""

from __future__ import annotations

import codecs
import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from k3lab.config.errors import UserError
from k3lab.data.files import shown

_CHUNK = 1 << 22  # bytes checked at a time, so that no decoded copy of a large file exists


@dataclass(frozen=True)
class Corpus:
    """Bytes of both sides (uint8), the files behind them, and what the user should know."""

    train: np.ndarray
    validation: np.ndarray
    train_files: tuple[Path, ...]
    validation_files: tuple[Path, ...]
    fingerprint: str  # of the bytes and their split
    notes: tuple[str, ...]


def read_corpus(files: list[Path], fraction: float, window: int, raw: bool, tolerant: bool = False) -> Corpus:
    """Read `files` and give about `fraction` of them to validation, at least one window of bytes.

    `raw` takes any bytes; else files with NUL bytes or invalid UTF-8 are refused, or left out when
    `tolerant`. UserError: those, unreadable files, no bytes at all, a side shorter than `window`.
    """
    data, ends = _read(files)
    starts = [0, *ends[:-1]]
    notes: list[str] = []
    spans: list[tuple[Path, int, int]] = []
    for file, start, end in zip(files, starts, ends, strict=True):
        fault = None if raw else text_fault(data[start:end])
        if fault and not tolerant:
            raise UserError(f"{shown(file)}: {fault}; allowed: UTF-8 text without NUL, or any bytes with data.raw=true")
        if fault:
            notes.append(f"left out {shown(file)}: {fault}")
        elif end > start:
            spans.append((file, start, end))
    if not spans:
        raise UserError(f"data.path: the corpus is empty ({len(files)} files, 0 bytes of text)")

    hashes = [_hash(data[start:end]) for _, start, end in spans]
    if len(set(hashes)) == 1:
        train, validation, note = _split_one(data[spans[0][1] : spans[0][2]], fraction, window)
        notes.append(f"{shown(spans[0][0])} is the only {'text' if len(spans) > 1 else 'file'}: {note}")
        sides = (spans[0][0],), (spans[0][0],)
    else:
        held_out = _choose(hashes, [end - start for _, start, end in spans], fraction, window)
        chosen = [h in held_out for h in hashes]
        sides = tuple(
            tuple(file for (file, *_), c in zip(spans, chosen, strict=True) if c is side) for side in (False, True)
        )
        validation = np.concatenate([data[a:b] for (_, a, b), c in zip(spans, chosen, strict=True) if c])
        train = _compact(data, [(a, b) for (_, a, b), c in zip(spans, chosen, strict=True) if not c])
    for name, side in (("training", train), ("validation", validation)):
        if len(side) < window:
            raise UserError(
                f"data.seq_len={window - 1}: the {name} text has {len(side)} bytes and must have at least "
                f"seq_len + 1 = {window}; give more text or a shorter seq_len"
            )
    digest = hashlib.blake2b(f"{len(train)} {len(validation)}".encode(), digest_size=8)
    for h in hashes:
        digest.update(h)
    return Corpus(train, validation, *sides, digest.hexdigest(), tuple(notes))


def text_fault(data: np.ndarray) -> str | None:
    """What keeps these bytes from being text, with its offset; None for text."""
    position, size = 0, len(data)
    while position < size:
        chunk = data[position : position + _CHUNK].tobytes()
        if (nul := chunk.find(b"\0")) >= 0:
            return f"binary file (NUL byte at offset {position + nul})"
        try:
            _, used = codecs.utf_8_decode(chunk, "strict", position + len(chunk) == size)
        except UnicodeDecodeError as error:
            return f"no UTF-8 text (byte 0x{chunk[error.start]:02x} at offset {position + error.start})"
        position += used
    return None


def entropy_bits(data: np.ndarray) -> float:
    """Entropy of the byte frequencies, in bits a byte: what a model without any context can reach."""
    counts = np.bincount(data, minlength=256)
    p = counts[counts > 0] / len(data)
    return float(-(p * np.log2(p)).sum())


def _read(files: list[Path]) -> tuple[np.ndarray, list[int]]:
    """All bytes of all files in one uint8 array, and where each file ends."""
    try:
        sizes = [file.stat().st_size for file in files]
        data = np.empty(sum(sizes), dtype=np.uint8)
    except OSError as error:
        raise UserError(f"data.path: {shown(Path(error.filename))} is gone: {error.strerror}") from error
    except MemoryError as error:
        raise UserError(f"data.path: {sum(sizes)} bytes of text do not fit into memory") from error
    ends = np.cumsum(sizes, dtype=np.int64).tolist()
    for file, size, end in zip(files, sizes, ends, strict=True):
        _fill(data[end - size : end], file)
    return data, ends


def _fill(piece: np.ndarray, file: Path) -> None:
    view, filled = memoryview(piece), 0
    try:
        with file.open("rb", buffering=0) as handle:
            while filled < len(piece) and (got := handle.readinto(view[filled:])):
                filled += got
            more = handle.read(1)
    except OSError as error:
        raise UserError(f"data.path: cannot read {shown(file)}: {error.strerror}") from error
    if filled < len(piece) or more:
        raise UserError(f"data.path: {shown(file)} changes while it is read")


def _hash(data: np.ndarray) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


def _choose(hashes: list[bytes], sizes: list[int], fraction: float, window: int) -> set[bytes]:
    """Hashes of the validation files: those in the lowest `fraction` of hash space, and the next
    ones until a window fits, but never all."""
    total: Counter[bytes] = Counter()
    for h, size in zip(hashes, sizes, strict=True):
        total[h] += size
    held_out: set[bytes] = set()
    bytes_held = 0
    for h in sorted(total)[:-1]:
        if held_out and int.from_bytes(h, "big") >= fraction * 2**64 and bytes_held >= window:
            break
        held_out.add(h)
        bytes_held += total[h]
    return held_out


def _split_one(data: np.ndarray, fraction: float, window: int) -> tuple[np.ndarray, np.ndarray, str]:
    """Split one text by position, its end for validation, between two characters of UTF-8."""
    size = len(data)
    cut = size - max(round(size * fraction), min(window, size // 2))
    while cut > 0 and data[cut] & 0xC0 == 0x80:
        cut -= 1
    return data[:cut], data[cut:], f"its last {size - cut} of {size} bytes are the validation text"


def _compact(data: np.ndarray, spans: list[tuple[int, int]]) -> np.ndarray:
    """Move spans together inside `data`, which holds the whole corpus and must not exist twice."""
    position = 0
    for start, end in spans:
        if start > position:
            data[position : position + end - start] = data[start:end]
        position += end - start
    return data[:position]
