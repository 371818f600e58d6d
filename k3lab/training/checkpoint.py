"""Checkpoints: a folder of safetensors files and one manifest with checksums; no pickle is written or read.

    checkpoints/step_00000100/model.safetensors       weights and buffers
                              optimizer.safetensors   tensors of the optimizer's state
                              rng.safetensors         states of the random generators
                              manifest.json           everything else, and a SHA-256 of every file and of itself

A checkpoint is written under a temporary name, forced to the disk and renamed, so that a folder with a final
name is complete whatever happened to the process or the machine.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from k3lab.training.foreign import CheckpointError, refuse_pickle
from k3lab.training.packing import pack, pack_unique, unpack

FORMAT = "k3lab-checkpoint-1"
PARTS = ("model", "optimizer", "rng")
MANIFEST = "manifest.json"
TEMPORARY = ".tmp-"


@dataclass
class Snapshot:
    """A training between two optimizer steps."""

    step: int  # optimizer steps done
    model: dict[str, Tensor]  # state dict: parameters, router biases and pending statistics
    optimizer: Any = None  # tree of dicts, lists, numbers and tensors
    rng: Any = None  # likewise
    state: Any = field(default_factory=dict)  # likewise, without tensors: run id, last metrics, wall time …


def name_of(step: int) -> str:
    """Return a checkpoint's folder name, such as ``step_00000100``."""
    return f"step_{step:08d}"


def step_of(folder: Path) -> int:
    """Return the step in a checkpoint folder's name."""
    return int(folder.name.removeprefix("step_"))


def write(checkpoints: Path, snapshot: Snapshot, keep: int) -> Path:
    """Write a snapshot below ``checkpoints``, prune all but the newest ``keep``, and return its folder.

    Raises OSError when the disk refuses; older checkpoints are untouched then. Checkpoints of later steps are
    removed: they belong to a future that resume has left because it could not be read.
    """
    checkpoints.mkdir(parents=True, exist_ok=True)
    for leftover in checkpoints.glob(f"{TEMPORARY}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    final = checkpoints / name_of(snapshot.step)
    folder = checkpoints / f"{TEMPORARY}{final.name}"
    try:
        _fill(folder, snapshot)
        if final.exists():  # a damaged one that resume went behind
            final.rename(checkpoints / f"{TEMPORARY}old-{final.name}")
        folder.rename(final)
        _sync(checkpoints)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    _prune(checkpoints, snapshot.step, keep)
    return final


def read(folder: Path, parts: tuple[str, ...] = PARTS) -> Snapshot:
    """Verify a checkpoint's checksums and return the asked parts of it; raises CheckpointError."""
    manifest = verify(folder)
    tensors = {part: _load(folder / f"{part}.safetensors") if part in parts else {} for part in PARTS}
    try:
        model = tensors["model"]
        if "model" in parts:
            model |= {name: model[same] for name, same in manifest["aliases"].items()}
        trees = {p: unpack(manifest[p], tensors[p]) if p in parts else None for p in ("optimizer", "rng")}
        state = unpack(manifest["state"], {})
        return Snapshot(manifest["step"], model, trees["optimizer"], trees["rng"], state)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder / MANIFEST} does not fit its tensor files: {error!r}") from error


def verify(folder: Path) -> dict[str, Any]:
    """Return the manifest after comparing every checksum; raises CheckpointError naming the file."""
    refuse_pickle(folder)
    file = folder / MANIFEST
    try:
        manifest = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} is no checkpoint of k3lab: it has no {MANIFEST}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} is damaged: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{file} is not of the format {FORMAT}")
    if manifest.pop("sha256", None) != _manifest_hash(manifest):
        raise CheckpointError(f"{file} is damaged: its checksum does not match")
    for part in PARTS:
        tensors = folder / f"{part}.safetensors"
        try:
            found = _file_hash(tensors)
        except OSError as error:
            raise CheckpointError(f"{tensors} cannot be read: {error.strerror}") from error
        if found != manifest["files"].get(tensors.name):
            raise CheckpointError(f"{tensors} is damaged: its checksum does not match the manifest's")
    return manifest


def complete(checkpoints: Path) -> list[Path]:
    """Return the folders with a final name, the newest step first, without looking into them."""
    if not checkpoints.is_dir():
        return []
    found = [p for p in checkpoints.iterdir() if re.fullmatch(r"step_\d{8,}", p.name) and p.is_dir()]
    return sorted(found, key=step_of, reverse=True)


def newest(checkpoints: Path) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint that verifies (None if there is none yet) and a line for each one skipped.

    Raises CheckpointError if there are checkpoints and none of them is usable.
    """
    if checkpoints.exists():
        refuse_pickle(checkpoints)
    skipped: list[str] = []
    for folder in complete(checkpoints):
        try:
            verify(folder)
        except CheckpointError as error:
            skipped.append(str(error))
            continue
        return folder, skipped
    if skipped:
        raise CheckpointError("no usable checkpoint is left: " + "; ".join(skipped))
    return None, []


def disk_refused(error: BaseException) -> bool:
    """Return whether an exception says that the disk, a quota or a file size limit is exhausted."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return False


def _fill(folder: Path, snapshot: Snapshot) -> None:
    folder.mkdir()
    model, aliases = pack_unique(snapshot.model)
    optimizer, optimizer_tensors = pack(snapshot.optimizer)
    rng, rng_tensors = pack(snapshot.rng)
    files = {}
    for part, tensors in zip(PARTS, (model, optimizer_tensors, rng_tensors), strict=True):
        file = folder / f"{part}.safetensors"
        _save(tensors, file)
        files[file.name] = _file_hash(file)
    manifest = {
        "format": FORMAT,
        "step": snapshot.step,
        "files": files,
        "aliases": aliases,
        "optimizer": optimizer,
        "rng": rng,
        "state": pack(snapshot.state)[0],
    }
    manifest["sha256"] = _manifest_hash(manifest)
    with (folder / MANIFEST).open("w", encoding="utf-8") as out:
        json.dump(manifest, out, allow_nan=False)
        out.flush()
        os.fsync(out.fileno())
    _sync(folder)


def _save(tensors: dict[str, Tensor], file: Path) -> None:
    try:
        save_file(tensors, file)
    except SafetensorError as error:  # its input/output errors carry the system's number in the text only
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        code = int(number.group(1))
        raise OSError(code, os.strerror(code), str(file)) from error
    with file.open("rb") as written:
        os.fsync(written.fileno())


def _load(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{file} is no safetensors file: {error}") from error


def _prune(checkpoints: Path, step: int, keep: int) -> None:
    folders = complete(checkpoints)
    later = [p for p in folders if step_of(p) > step]
    for old in later + [p for p in folders if p not in later][keep:]:
        doomed = checkpoints / f"{TEMPORARY}old-{old.name}"
        old.rename(doomed)  # half deleted, it must not be taken for a checkpoint
        shutil.rmtree(doomed, ignore_errors=True)
    for leftover in checkpoints.glob(f"{TEMPORARY}old-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _manifest_hash(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _file_hash(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
