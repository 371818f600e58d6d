"""The README's example of adding an option, followed to the letter in a copy of the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import SMALL

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^`(?P<file>[\w/.]+)`\n\n```\w+\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_example_option_works(tmp_path: Path) -> None:
    house = tmp_path / "house"
    for name in ("k3lab", "kernels", "conf"):
        shutil.copytree(ROOT / name, house / name, ignore=shutil.ignore_patterns("__pycache__"))
    files = {m["file"]: m["text"] for m in BLOCK.finditer((ROOT / "README.md").read_text())}
    assert set(files) == {"k3lab/decay/clamp.py", "conf/decay/clamp.yaml", "tests/decay/test_clamp.py"}
    for name, text in files.items():
        (house / name).parent.mkdir(parents=True, exist_ok=True)
        (house / name).write_text(text)

    env = {**os.environ, "PYTHONPATH": f"{house}:{house / 'kernels'}", "OMP_NUM_THREADS": "1"}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200
        )

    trained = run("-m", "k3lab", "train", "decay=clamp", "trainer.max_steps=2", "tracking=none", *SMALL)
    assert trained.returncode == 0, trained.stderr[-2000:]
    assert "name: clamp" in (tmp_path / trained.stdout.splitlines()[-1] / "config.yaml").read_text()
    assert "clamp" in run("-m", "k3lab", "--help").stdout
    tested = run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(house / "tests/decay/test_clamp.py"))
    assert tested.returncode == 0, tested.stdout
