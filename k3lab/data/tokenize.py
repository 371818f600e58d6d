"""Text to token ids and back: bytes, or byte-pair encoding by the optional `tokenizers` library.

Besides its text every tokenizer has a separator, an id that no text contains and that begins each document.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from k3lab.config.errors import UserError
from k3lab.data.documents import document_files, read_documents
from k3lab.data.files import shown
from k3lab.data.optional import require

SEPARATOR = "<|document|>"  # in vocabularies trained here
# What vocabularies trained elsewhere call it; the first that is there is taken.
SEPARATORS = (SEPARATOR, "<|endoftext|>", "<|bos|>", "<|begin_of_text|>", "<s>", "[BOS]", "[CLS]", "</s>", "[SEP]")
PIECE = 1 << 20  # characters given to the library at once: it needs a hundred bytes a token
BYTES = 256  # ids below are bytes in any byte-level vocabulary, so no vocabulary is smaller


class Tokenizer(Protocol):
    """Ids of texts; `separator` lies below `vocab_size`."""

    vocab_size: int
    separator: int

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text (integers, [n] each), without any separator."""

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; a separator in the middle becomes an empty line."""

    def save(self, folder: Path) -> str:
        """Put what `load_tokenizer` needs into a folder; returns the name it is to be loaded by."""


class ByteTokenizer:
    """A token is a byte of UTF-8; the separator is 256."""

    vocab_size = BYTES + 1
    separator = BYTES

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        # Surrogates stand for bytes of the command line that are no UTF-8.
        return [np.frombuffer(text.encode("utf-8", "surrogateescape"), dtype=np.uint8) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        parts = _documents(ids, self.separator)
        return "\n\n".join(bytes(i if i < BYTES else 0xFF for i in part).decode("utf-8", "replace") for part in parts)

    def save(self, folder: Path) -> str:
        return "bytes"


class BPETokenizer:
    """A vocabulary in the `tokenizer.json` format; UserError: no library, no such file, no separator in it."""

    def __init__(self, file: Path) -> None:
        tokenizers = _library()
        try:
            text = file.read_text(encoding="utf-8")
            self._tokenizer: Any = tokenizers.Tokenizer.from_str(text)
        except OSError as error:
            raise UserError(f"{shown(file)}: cannot be read: {error.strerror}") from error
        except Exception as error:  # the library raises plain exceptions, and its parser several kinds
            raise UserError(f"{shown(file)} is no tokenizer.json: {' '.join(str(error).split())}") from error
        self._text = text
        # A text may contain the letters of a special token; that makes it no special token.
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocab_size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())
        found = [i for name in SEPARATORS if (i := self._tokenizer.token_to_id(name)) is not None]
        if not found:
            raise UserError(f"{shown(file)} has no token to begin a document with: must have one of {SEPARATORS}")
        self.separator: int = found[0]

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        pieces = [list(split_text(text, PIECE)) for text in texts]
        flat = [piece for parts in pieces for piece in parts]
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(flat, add_special_tokens=False)]
        found, place = [], 0
        for parts in pieces:
            joined = [i for piece in ids[place : place + len(parts)] for i in piece]
            found.append(np.array(joined, dtype=np.uint32))
            place += len(parts)
        return found

    def decode(self, ids: Iterable[int]) -> str:
        parts = _documents(ids, self.separator)
        return "\n\n".join(self._tokenizer.decode(part, skip_special_tokens=False) for part in parts)

    def save(self, folder: Path) -> str:
        name = "tokenizer.json"
        (folder / name).write_text(self._text, encoding="utf-8")
        return name


def load_tokenizer(file: Path | None) -> ByteTokenizer | BPETokenizer:
    """The tokenizer of a `tokenizer.json`; None: bytes. UserError: see `BPETokenizer`."""
    return ByteTokenizer() if file is None else BPETokenizer(file)


def train_bpe(files: Sequence[Path], vocab_size: int, output: Path) -> int:
    """Learn a byte-level vocabulary of at most `vocab_size` ids (separator included) from the documents of files
    and folders (see `k3lab.data.documents`), write it to `output` as tokenizer.json, and return its size.

    Byte-level BPE as in GPT-2: no text is unknown, and decoding gives back every byte. The same files give the
    same vocabulary. UserError: no library, unusable files, too small a vocabulary, an output that is there.
    """
    tokenizers = _library()
    if vocab_size <= BYTES:
        raise UserError(f"vocab_size={vocab_size}: must be at least {BYTES + 1}, the bytes and the separator")
    if output.exists():
        raise UserError(f"{shown(output)} exists already: remove it, or choose another file")
    found = document_files(files)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[SEPARATOR],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    pieces = (piece for text in read_documents(found) for piece in split_text(text, PIECE))
    tokenizer.train_from_iterator(pieces, trainer)
    _write(output, tokenizer.to_str(pretty=True))
    return tokenizer.get_vocab_size()


def split_text(text: str, longest: int) -> Iterator[str]:
    """Pieces of about `longest` characters, cut where a line begins with no space; without one, the whole.

    A pre-tokenizer cuts there as well: after a single line end, and before the last of several spaces and line
    ends. So the ids are those of the whole text.
    """
    start = 0
    while len(text) - start > longest:
        end = text.find("\n", start + longest)
        while 0 <= end < len(text) - 1 and text[end + 1].isspace():
            end = text.find("\n", end + 1)
        if not 0 <= end < len(text) - 1:
            break
        cut = end if text[end - 1].isspace() else end + 1
        yield text[start:cut]
        start = cut
    yield text[start:] if start else text


def _library() -> Any:
    # Said explicitly, or the library warns when a data loader forks after it has used threads.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    return require("tokenizers", "bpe", "byte-pair encoding")


def _documents(ids: Iterable[int], separator: int) -> list[list[int]]:
    """Ids between separators; those that begin the list begin no new document."""
    parts: list[list[int]] = [[]]
    for i in ids:
        if i != separator:
            parts[-1].append(i)
        elif parts[-1]:
            parts.append([])
    return parts


def _write(output: Path, text: str) -> None:
    """Write a file that is either there and whole, or not there."""
    draft = output.with_name(f".tmp-{output.name}-{secrets.token_hex(4)}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("x", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(output)
    except OSError as error:
        raise UserError(f"{shown(output)}: cannot be written: {error.strerror}") from error
    finally:
        if draft.parent.is_dir():
            draft.unlink(missing_ok=True)
