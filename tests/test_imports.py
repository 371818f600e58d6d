"""The arrows of the house: who may import whom."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COMPONENTS = ("decay", "router", "residual", "mixer", "ffn")

# package of k3lab -> packages of k3lab that it may import (besides itself)
LEAVES = {"config", "tracking.names", "model_dims", "plotting"}
ALLOWED: dict[str, set[str]] = {
    "config": set(),
    "model_dims": set(),
    "plotting": set(),
    **{name: {"config.checks", "model_dims", *COMPONENTS} for name in COMPONENTS},
    "model": {*LEAVES, *COMPONENTS},
    "data": {"config"},
    "optim": {"config"},
    "schedule": {"config"},
    "tracking": {"config"},
    "diagnostics": {*LEAVES, *COMPONENTS, "model", "tracking"},
    "strategy": {*LEAVES, *COMPONENTS, "model"},
    "training": {*LEAVES, *COMPONENTS, "model", "data", "optim", "schedule", "tracking", "diagnostics", "strategy"},
    "sweep": {"config"},
    "launch": {*LEAVES, "training", "tracking", "sweep", "strategy"},
    "bench": {*LEAVES, *COMPONENTS, "model", "training", "data"},
    "report": {*LEAVES, "tracking", "diagnostics"},
}
FOREIGN = {
    **{name: {"hydra", "omegaconf", "lightning", "mlflow"} for name in (*COMPONENTS, "model", "model_dims")},
    "config": {"torch", "lightning", "mlflow"},
}


def imports(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def is_under(name: str, packages: set[str]) -> bool:
    return any(name == p or name.startswith(p + ".") for p in packages)


TOP = ("cli.py", "__init__.py", "__main__.py")  # these may import everything
FILES = [f for f in sorted((ROOT / "k3lab").rglob("*.py")) if f.parent.name != "k3lab" or f.name not in TOP]


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_arrows(file: Path) -> None:
    package = file.relative_to(ROOT / "k3lab").parts[0].removesuffix(".py")
    assert package in ALLOWED, f"no arrow is drawn for k3lab/{package}"
    for name in imports(file):
        if name.startswith("k3lab."):
            inner = name.removeprefix("k3lab.")
            assert is_under(inner, {package, *ALLOWED[package]}), f"{file} imports {name}"
        assert not is_under(name, FOREIGN.get(package, set())), f"{file} imports {name}"


@pytest.mark.parametrize("file", sorted((ROOT / "kernels").rglob("*.py")), ids=lambda f: str(f.relative_to(ROOT)))
def test_kernels_need_torch_and_triton_alone(file: Path) -> None:
    import sys

    for name in imports(file):
        top = name.split(".")[0]
        assert top in {"torch", "triton", "k3lab_kernels"} or top in sys.stdlib_module_names, f"{file} imports {name}"
