"""A wheel, installed in a fresh environment away from the checkout, runs the main job."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from tests.e2e.conftest import SMALL, summary

ROOT = Path(__file__).resolve().parents[2]


def test_wheel_trains_three_steps(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel], check=True, capture_output=True
    )
    # The dependencies are this environment's; its own (editable) k3lab stays out, since .pth files do not nest.
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    Path(site, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    away = tmp_path / "away"
    away.mkdir()
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [tmp_path / "venv/bin/k3lab", "train", "trainer.max_steps=3", *SMALL],
        cwd=away,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    done = summary(away / process.stdout.strip().splitlines()[-1])
    assert done["status"] == "finished"
    assert done["steps"] == 3
    assert sorted(p.name for p in away.iterdir()) == ["runs"], "nothing else appears in the working directory"
    where = subprocess.run(
        [python, "-c", "import k3lab; print(k3lab.__file__)"], cwd=away, env=env, capture_output=True, text=True
    )
    assert str(tmp_path) in where.stdout
