"""Trainers that can be killed, and what they left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SMALL = [
    "model.hidden_size=32",
    "model.heads=2",
    "model.layers=4",
    "ffn.experts=8",
    "ffn.top_k=2",
    "data.seq_len=64",
    "data.batch_size=8",
    "data.path=corpus",
    "model.dropout=0.1",
    "trainer.accelerator=cpu",
    "trainer.accumulate=2",
    "trainer.max_steps=10",
    "trainer.val_every=4",
    "trainer.val_batches=1",
    "trainer.log_every=100",
    "diagnostics.every=3",
    "diagnostics.probe_sequences=1",
    "diagnostics.figures=false",
    "checkpoint.every=2",
    "optim.lr=0.01",
    "tracking=none",
]


@dataclass
class Trained:
    """How a trainer ended and what it left."""

    code: int
    errors: str
    folder: Path

    @property
    def summary(self) -> dict:
        return json.loads((self.folder / "summary.json").read_text())

    @property
    def checkpoints(self) -> list[str]:
        return sorted(p.name for p in (self.folder / "checkpoints").iterdir())

    def series(self, prefix: str = "") -> dict[tuple[str, int], float]:
        """Return {(name, step): value} of all metrics but speed; fails if one was logged twice."""
        found: dict[tuple[str, int], float] = {}
        for line in (self.folder / "metrics.jsonl").read_text().splitlines():
            values = json.loads(line)
            step, _ = values.pop("step"), values.pop("time")
            for name, value in values.items():
                if name.startswith(prefix) and not name.startswith(("perf/", "system/")):
                    assert (name, step) not in found, f"{name} of step {step} is there twice"
                    found[name, step] = value
        return found


class Trainers:
    """Runs trainers one after another in processes of their own."""

    def __init__(self, process: subprocess.Popen[str], home: Path) -> None:
        self.process, self.home = process, home

    def __call__(
        self,
        folder: Path,
        *overrides: str,
        resume: bool = False,
        at: str = "",
        count: int = 0,
        sig: int = signal.SIGKILL,
        times: int = 1,
        limit: int = 0,
    ) -> Trained:
        errors = self.home / "stderr"
        errors.write_text("")
        request = {
            "folder": str(folder),
            "overrides": [*(() if resume else (*SMALL, f"paths.output={folder.parent}")), *overrides],
            "resume": resume,
            "at": at,
            "count": count,
            "signal": int(sig),
            "times": times,
            "limit": limit,
            "stderr": str(errors),
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        code = json.loads(self.process.stdout.readline())
        assert code != 99, errors.read_text()
        return Trained(code, errors.read_text(), folder)


@pytest.fixture(scope="session")
def train(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainers]:
    """A callable that trains in a forked process."""
    home = tmp_path_factory.mktemp("home")
    corpus = home / "corpus"
    corpus.mkdir()
    for index in range(8):
        text = "".join(f"line {i * (index + 3) % 101} of file {index}\n" for i in range(400))
        (corpus / f"{index}.txt").write_text(text)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.resume.zygote"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=home,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
        },
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == "ready"
    yield Trainers(process, home)
    assert process.stdin is not None
    process.stdin.close()
    process.wait(timeout=30)


@pytest.fixture(scope="session")
def undisturbed(train: Trainers, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The run that all others are compared with."""
    done = train(tmp_path_factory.mktemp("runs") / "undisturbed")
    assert done.code == 0, done.errors
    return done
