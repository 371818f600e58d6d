"""`k3lab data prepare`: text files to a folder of tokens for data=shards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from k3lab.config.errors import UserError
from k3lab.data.documents import document_files, read_documents
from k3lab.data.tokenfolder import TokenWriter, new_folder
from k3lab.data.tokenize import load_tokenizer

BATCH = 1000  # documents tokenised at once, by as many threads as the tokenizer likes
RANGE = 1 << 64  # of the hashes that place a document


def prepare(inputs: list[Path], output: Path, tokenizer: Path | None = None, validation_fraction: float = 0.01) -> None:
    """Tokenise the documents of files and folders into the new folder `output`.

    `tokenizer` is a tokenizer.json; None: bytes. A document goes to the validation side if the hash of its text
    lies in the lowest `validation_fraction`, so copies are never on both sides; there is at least one on each.
    The output is there whole or not at all. UserError: unusable inputs or tokenizer, an output that exists.
    """
    if not 0 < validation_fraction < 1:
        raise UserError(f"validation_fraction={validation_fraction}: must lie in (0, 1)")
    files = document_files(inputs)
    chosen = load_tokenizer(tokenizer)
    with new_folder(output) as draft:
        writer = TokenWriter(draft, chosen)
        write_documents(writer, _sided(files, validation_fraction))
        writer.close({"inputs": [str(path) for path in inputs], "validation_fraction": validation_fraction})


def write_documents(writer: TokenWriter, documents: Iterable[tuple[str, str]]) -> None:
    """Tokenise and write (side, text) pairs in their order; empty texts are passed over."""
    pairs = ((side, text) for side, text in documents if text)
    while batch := list(islice(pairs, BATCH)):
        ids = writer.tokenizer.encode([text for _, text in batch])
        for (side, text), own in zip(batch, ids, strict=True):
            writer.add(side, own, len(text.encode("utf-8")))


def text_hash(text: str) -> int:
    """Hash of a text, in [0, 2^64)."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "big")


def _sided(files: list[Path], fraction: float) -> Iterator[tuple[str, str]]:
    """All documents with their side; the files are read twice, since sides depend on what else there is."""
    low, high, count = RANGE, -1, 0
    for text in read_documents(files):
        low, high, count = min(low, text_hash(text)), max(high, text_hash(text)), count + 1
    if not count:
        raise UserError(f"there is no text in the {len(files)} files given")
    if low == high:
        yield from _halves(next(read_documents(files)), fraction)
        return
    # At least one text on each side: the threshold lies above the lowest hash, and not above the highest.
    threshold = min(max(round(fraction * RANGE), low + 1), high)
    for text in read_documents(files):
        yield "validation" if text_hash(text) < threshold else "train", text


def _halves(text: str, fraction: float) -> Iterator[tuple[str, str]]:
    """The only text there is: its end is validation."""
    if len(text) < 2:
        raise UserError("there is only one character of text: it cannot be split into training and validation")
    cut = min(len(text) - 1, max(1, round(len(text) * (1 - fraction))))
    yield "train", text[:cut]
    yield "validation", text[cut:]
