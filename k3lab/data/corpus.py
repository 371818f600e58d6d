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

Span = tuple[Path, int, int]  # a file and where its bytes start and end in the array of all bytes

_CHUNK = 1 << 22  # bytes looked at at a time: a large file must not exist in memory a second time


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
    spans: list[Span] = []
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
    held_hashes = _choose(hashes, [end - start for _, start, end in spans], fraction, window)
    kept = [span for span, h in zip(spans, hashes, strict=True) if h not in held_hashes]
    held = [span for span, h in zip(spans, hashes, strict=True) if h in held_hashes]
    if not held:
        kept, held = _split_largest(data, spans, hashes, fraction, window)
        file, start, end = held[0]
        notes.append(f"too few files to hold one out: the last {end - start} bytes of {shown(file)} are validation")
    validation = np.concatenate([data[start:end] for _, start, end in held])
    train = _compact(data, kept)
    for name, side in (("training", train), ("validation", validation)):
        if len(side) < window:
            raise UserError(
                f"data.seq_len={window - 1}: the {name} text has {len(side)} bytes and must have at least "
                f"seq_len + 1 = {window}; give more text or a shorter seq_len"
            )
    digest = hashlib.blake2b(f"{len(train)} {len(validation)}".encode(), digest_size=8)
    for h in hashes:
        digest.update(h)
    kept_files, held_files = tuple(file for file, *_ in kept), tuple(file for file, *_ in held)
    return Corpus(train, validation, kept_files, held_files, digest.hexdigest(), tuple(notes))


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
    pieces = [np.bincount(data[i : i + _CHUNK], minlength=256) for i in range(0, len(data), _CHUNK)]
    counts = np.sum(pieces, axis=0)
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
    view, filled = piece.data, 0
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
    return hashlib.blake2b(data.data, digest_size=8).digest()


def _choose(hashes: list[bytes], sizes: list[int], fraction: float, window: int) -> set[bytes]:
    """Hashes of the validation files: those in the lowest `fraction` of hash space; if they do not
    fill a window, the smallest file that does as well; none if a side then lacks a window."""
    total: Counter[bytes] = Counter()
    for h, size in zip(hashes, sizes, strict=True):
        total[h] += size
    held = {h for h in total if int.from_bytes(h, "big") < fraction * 2**64}
    if sum(total[h] for h in held) < window:
        held.update(sorted((h for h in total if total[h] >= window), key=lambda h: (total[h], h))[:1])
    bytes_held = sum(total[h] for h in held)
    return held if bytes_held >= window and total.total() - bytes_held >= window else set()


def _split_largest(
    data: np.ndarray, spans: list[Span], hashes: list[bytes], fraction: float, window: int
) -> tuple[list[Span], list[Span]]:
    """Hold out the end of the largest file, cut between two characters of UTF-8; its copies go."""
    pick = max(range(len(spans)), key=lambda i: spans[i][2] - spans[i][1])
    file, start, end = spans[pick]
    size = end - start
    cut = end - max(round(size * fraction), min(window, size // 2))
    while cut > start and data[cut] & 0xC0 == 0x80:
        cut -= 1
    others = [span for span, h in zip(spans, hashes, strict=True) if h != hashes[pick]]
    return sorted([*others, (file, start, cut)], key=lambda span: span[1]), [(file, cut, end)]


def _compact(data: np.ndarray, spans: list[Span]) -> np.ndarray:
    """Move spans together inside `data`, which holds the whole corpus and must not exist twice."""
    position = 0
    for _, start, end in spans:
        if start > position:
            data[position : position + end - start] = data[start:end]
        position += end - start
    return data[:position]
