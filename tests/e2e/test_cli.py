"""The command line as a user meets it: help, refusals, one line each, at once, without torch."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from k3lab.config.registry import groups

VERBS = ("train", "eval", "generate", "audit", "bench", "ui")


def test_help_names_every_verb_and_group(k3lab) -> None:
    start = time.perf_counter()
    process = k3lab("--help", COLUMNS="200")
    assert time.perf_counter() - start < 5
    assert process.returncode == 0
    for word in (*VERBS, *groups()):
        assert word in process.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(k3lab, verb: str) -> None:
    assert k3lab(verb, "--help").returncode == 0


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["trian"], "Did you mean 'train'?"),
        (["train", "--shw"], "--show"),
        (["train", "decay=lowerbound"], "did you mean 'lower_bound'?"),
        (["train", "trainer.max_step=3"], "did you mean 'trainer.max_steps'?"),
        (["train", "-m", "decay=softplus,nnoe"], "did you mean 'none'?"),
        (["train", "resume=nowhere"], "nowhere"),
        (["train", "data.path=no/such/corpus"], "no/such/corpus"),
        (["eval"], "run= is missing"),
        (["eval", "run=nowhere"], "no such folder"),
        (["generate", "run=nowhere"], "no such folder"),
        (["generate", "run=.", "max_new_tokens=many"], "must be a whole number"),
        (["generate", "run=.", "promt=x"], "did you mean 'prompt'?"),
        (["audit", "modle=nano"], "did you mean 'model'?"),
        (["bench", "kdaa"], "did you mean 'kda'?"),
        (["ui", "--port", "none"], "--port"),
    ],
)
def test_mistakes_get_one_line(k3lab, args: list[str], expected: str, tmp_path) -> None:
    start = time.perf_counter()
    process = k3lab(*args)
    assert time.perf_counter() - start < 10
    assert process.returncode == 2
    assert expected in process.stderr
    assert "Traceback" not in process.stderr
    assert len(process.stderr.strip().splitlines()) == 1, process.stderr
    assert not list(tmp_path.rglob("summary.json")), "a refused command leaves no run"


def test_a_refusal_shows_no_password(k3lab) -> None:
    process = k3lab("train", "tracking.uri=postgresql://u:s3cret@host/db?a=b")
    assert process.returncode == 2
    assert "u:***@host" in process.stderr
    assert "s3cret" not in process.stderr


def test_refusals_come_before_torch() -> None:
    code = (
        "import sys\n"
        "from k3lab import cli\n"
        "sys.argv = ['k3lab', 'train', 'ffn.top_k=99']\n"
        "try:\n    cli.main()\n"
        "except SystemExit as stop:\n    assert stop.code == 2, stop.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert "top_k" in process.stderr


def test_an_unforeseen_error_is_one_line() -> None:
    code = (
        "import sys\n"
        "from k3lab import cli\n"
        "cli.load = lambda given: 1 // 0\n"
        "sys.argv = ['k3lab', 'train', '--show']\n"
        "cli.main()\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 1
    assert process.stderr.startswith("k3lab: ZeroDivisionError")
    assert len(process.stderr.splitlines()) == 1


def test_an_interrupt_during_the_imports_is_quiet() -> None:
    code = (
        "import builtins, sys\n"
        "real = builtins.__import__\n"
        "def interrupted(name, *rest):\n"
        "    if name == 'k3lab.cli':\n"
        "        raise KeyboardInterrupt\n"
        "    return real(name, *rest)\n"
        "from k3lab.__main__ import main\n"
        "builtins.__import__ = interrupted\n"
        "main()\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (130, "")
