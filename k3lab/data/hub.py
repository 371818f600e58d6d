"""data=hub: a dataset of the Hugging Face Hub, or of local files that the `datasets` library can read.

The documents are streamed once, in their order, tokenised and kept as a folder of tokens in a cache, so that a
batch is a function of seed and step here too, and later runs need neither the network nor the library.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from glob import glob
from itertools import islice
from pathlib import Path
from typing import Any

from filelock import FileLock

from k3lab.config.checks import divides, in_range, positive
from k3lab.config.errors import UserError, nearest
from k3lab.data.files import shown
from k3lab.data.optional import require
from k3lab.data.prepare import text_hash, write_documents
from k3lab.data.tokenfolder import FORMAT, TokenFolder, TokenWriter, new_folder, open_folder
from k3lab.data.tokenize import load_tokenizer
from k3lab.data.tokensource import TokenSource

LOCAL = ["json", "parquet", "csv", "text"]  # names that mean local files
MISSING = "dataset=null: must be a dataset such as HuggingFaceFW/fineweb-edu, or json, parquet or text with data.files"


@dataclass(frozen=True)
class HubSettings:
    """Which documents, how they become tokens, and how those are cut into sequences."""

    name: str = "hub"
    dataset: str | None = None  # a dataset's name, or a folder (/, ./ or ~); json, parquet, csv or text: local files
    subset: str | None = None  # the dataset's configuration, where it has several
    revision: str | None = None  # branch, tag or commit; null: the newest when the cache is made
    split: str = "train"  # where the documents come from
    validation_split: str | None = None  # where those of validation come from; null: held out by their hash
    files: Any = None  # data files, one or a list: of the dataset, or local ones
    field: str = "text"  # the column that holds a document's text
    documents: int | None = 100000  # documents to take from the beginning of each split; null: all
    tokenizer: str | None = None  # a tokenizer.json; null: bytes
    validation_fraction: float = 0.01  # share of the documents held out, by a hash of their text
    cache: str = "~/.cache/k3lab"  # where the tokens are kept
    packing: bool = False  # sequences of whole documents; false: windows that begin and end anywhere
    seq_len: int = 256  # tokens a sequence
    batch_size: int = 16  # sequences an optimizer step, over all devices and micro-batches

    def __post_init__(self) -> None:
        if self.files is not None:
            files = self.files if isinstance(self.files, list) else [self.files]
            if not files or not all(isinstance(file, str) and file for file in files):
                raise ValueError(f"files={self.files}: must be null, a file or a list of them")
            if self.dataset in LOCAL:  # absolute, so that a saved configuration means the same files from anywhere
                files = [f if "://" in f else os.path.abspath(os.path.expanduser(f)) for f in files]
                object.__setattr__(self, "files", files if isinstance(self.files, list) else files[0])
        if self.dataset is not None and self.dataset.startswith((".", "~", "/")):  # a folder, not a name
            object.__setattr__(self, "dataset", os.path.abspath(os.path.expanduser(self.dataset)))
        for key in ("split", "field", "cache"):
            if not getattr(self, key):
                raise ValueError(f"{key}=: must not be empty")
        positive("documents", self.documents)
        in_range("validation_fraction", self.validation_fraction, 0, 1, low_open=True, high_open=True)
        positive("seq_len", self.seq_len)
        positive("batch_size", self.batch_size)
        object.__setattr__(self, "cache", os.path.abspath(os.path.expanduser(self.cache)))
        if self.tokenizer is not None:
            object.__setattr__(self, "tokenizer", os.path.abspath(os.path.expanduser(self.tokenizer)))

    @property
    def vocab_size(self) -> int | None:
        """Bytes and the separator; None: what the tokenizer's file says."""
        return 257 if self.tokenizer is None else None

    def check(self, config: Any) -> None:
        """Refuse a missing dataset or file, and a global batch that devices × accumulation do not divide."""
        if self.dataset is None:
            raise ValueError(f"data.{MISSING}")
        if self.dataset in LOCAL and self.files is None:
            raise ValueError(f"data.files=null: must name the files that data.dataset={self.dataset} is to read")
        parts = config.trainer.devices * config.trainer.accumulate
        divides("data.batch_size", self.batch_size, "trainer.devices × trainer.accumulate", parts)


class Hub(TokenSource):
    """Tokens of a dataset, made when they are first asked for."""

    settings: HubSettings

    def obtain(self) -> TokenFolder:
        s = self.settings
        if s.dataset is None:
            raise UserError(f"data.{MISSING}")
        name = f"{re.sub(r'[^A-Za-z0-9]+', '-', s.dataset)[-40:].strip('-')}-{self._key()}"
        folder = Path(s.cache, "hub", name)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.with_name(f".{name}.lock")):  # jobs that start together make it once
                if not folder.exists():
                    self._make(folder)
        except OSError as error:
            raise UserError(f"data.cache={shown(Path(s.cache))}: cannot be written: {error.strerror}") from error
        return open_folder(folder)

    def _make(self, folder: Path) -> None:
        s = self.settings
        library = self._library()
        tokenizer = load_tokenizer(None if s.tokenizer is None else Path(s.tokenizer))
        print(f"k3lab: reading data.dataset={s.dataset} into {shown(folder)}", file=sys.stderr, flush=True)
        for draft in folder.parent.glob(f".tmp-{folder.name}-*"):  # of a process that was killed
            shutil.rmtree(draft, ignore_errors=True)
        with new_folder(folder) as draft:
            writer = TokenWriter(draft, tokenizer)
            write_documents(writer, self._sided(library))
            for side, total in writer.totals.items():
                if not total["documents"]:
                    counts = {name: other["documents"] for name, other in writer.totals.items()}
                    raise UserError(
                        f"data.dataset={s.dataset}: no document for {side} (documents: {counts}); "
                        "take more data.documents, another data.validation_fraction or a data.validation_split"
                    )
            writer.close(self._identity())

    def _sided(self, library: Any) -> Iterator[tuple[str, str]]:
        s = self.settings
        threshold = round(s.validation_fraction * 2**64)
        for text in islice(self._texts(library, s.split), s.documents):
            held = s.validation_split is None and text_hash(text) < threshold
            yield "validation" if held else "train", text
        if s.validation_split is not None:
            for text in islice(self._texts(library, s.validation_split), s.documents):
                yield "validation", text

    def _texts(self, library: Any, split: str) -> Iterator[str]:
        """Texts of a split in the dataset's order; rows without any are passed over."""
        s = self.settings
        what = f"data.dataset={s.dataset}, split {split}"
        try:
            rows = library.load_dataset(
                s.dataset,
                s.subset,
                split=split,
                streaming=True,
                revision=s.revision,
                data_files=self._data_files(),
                cache_dir=str(Path(s.cache, "downloads")),
            )
            if rows.column_names and s.field in rows.column_names:
                rows = rows.select_columns([s.field])  # columnar files then read no other
            rows = iter(rows)
        except Exception as error:  # the library, its file systems and its parsers raise many kinds
            raise UserError(f"{what}: cannot be read: {_one_line(error)}") from error
        while True:
            try:
                row = next(rows, None)
            except Exception as error:
                raise UserError(f"{what}: cannot be read: {_one_line(error)}") from error
            if row is None:
                return
            if s.field not in row:
                raise UserError(f"data.field={s.field}: must be one of {', '.join(row)}{nearest(s.field, row)}")
            text = row[s.field]
            if text is not None and not isinstance(text, str):
                raise UserError(f"data.field={s.field}: must hold text, and holds {type(text).__name__}")
            if text:
                yield text.encode("utf-8", "replace").decode("utf-8")  # half of a surrogate pair is no text

    def _data_files(self) -> Any:
        s = self.settings
        # Files alone would all be the split `train`; the names of splits of local files are up to the user.
        return s.files if s.files is None or s.dataset not in LOCAL else {s.split: s.files}

    def _identity(self) -> dict[str, Any]:
        """What the tokens depend on."""
        s = self.settings
        keys = ("dataset", "subset", "revision", "split", "validation_split", "files", "field", "documents")
        found: dict[str, Any] = {key: getattr(s, key) for key in keys}
        found["validation_fraction"] = s.validation_fraction if s.validation_split is None else None
        patterns = [os.path.join(s.dataset or "", "**")] if os.path.isabs(s.dataset or "") else []
        if s.dataset in LOCAL and s.files is not None:
            patterns = s.files if isinstance(s.files, list) else [s.files]
        paths = sorted(path for pattern in patterns for path in glob(pattern, recursive=True) if os.path.isfile(path))
        found["local"] = [[path, os.stat(path).st_size, os.stat(path).st_mtime_ns] for path in paths]
        if s.tokenizer is not None:
            file = Path(s.tokenizer)
            if not file.is_file():
                raise UserError(f"data.tokenizer={shown(file)}: no such file")
            found["tokenizer"] = hashlib.sha256(file.read_bytes()).hexdigest()
        return found

    def _key(self) -> str:
        text = json.dumps([FORMAT, self._identity()], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    def _library(self) -> Any:
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        library = require("datasets", "hub", f"data=hub ({self.settings.dataset})")
        library.disable_progress_bars()
        library.logging.set_verbosity_error()
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # tells of every retry
        return library


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
