"""Files that are not ours: refused by name, before anything is read and before torch is imported."""

from __future__ import annotations

from pathlib import Path

from k3lab.config.errors import UserError

PICKLES = (".ckpt", ".pt", ".pth", ".bin", ".pkl", ".pickle", ".joblib", ".npy", ".distcp")


class CheckpointError(UserError):
    """A checkpoint that is damaged, foreign, or of another model; the message names the file or the tensor."""


def refuse_pickle(path: Path) -> None:
    """Raise CheckpointError for a file, or a folder with files, of a kind that runs code when it is read."""
    files = [path] if path.is_file() else sorted(path.iterdir()) if path.is_dir() else []
    for file in files:
        if file.suffix.lower() in PICKLES and file.is_file():
            raise CheckpointError(
                f"{file} may run code when it is loaded: refused; k3lab reads only safetensors files "
                "with their manifest"
            )
