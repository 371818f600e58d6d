"""The command line: `train`, `eval`, `generate` and `audit` take Hydra overrides, the other verbs ordinary options.

Nothing here imports torch before a configuration has been accepted, so that help and refusals come at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from k3lab.config.errors import UserError, nearest
from k3lab.config.load import load, load_folder
from k3lab.config.overrides import parse
from k3lab.config.registry import groups, options
from k3lab.config.schema import mask


class _Group(TyperGroup):
    """The top level, whose help also lists the config groups with their options."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        table = Table(title="Config groups: GROUP=OPTION for train, eval, generate and audit", title_justify="left")
        table.add_column("group", style="bold cyan", no_wrap=True)
        table.add_column("options")
        for group in groups():
            table.add_row(group, " · ".join(options(group)))
        Console().print(table)


app = typer.Typer(
    name="k3lab",
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Measure whether lower-bounded decay, quantile balancing and block attention residuals belong in your model.",
)

BENCHES = ("kda",)
TRACEBACK = "K3LAB_TRACEBACK"  # set: an unforeseen error ends with Python's traceback
DEVICES = ("auto", "cpu", "cuda")

Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Hydra overrides.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def train(
    overrides: Overrides = None,
    multirun: Annotated[bool, typer.Option("--multirun", "-m", help="One job for each combination of values.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Print the resolved configuration and stop.")] = False,
) -> int:
    """Train one model, or with -m one for every combination of values.

    Examples: k3lab train decay=softplus trainer.max_steps=200 · k3lab train -m router=quantile,sign_bias ·
    k3lab train resume=runs/train/20260101-120000-abc123
    """
    given = overrides or []
    if show:
        print(load(given).to_yaml(), end="")
        return 0
    if multirun:
        from k3lab.launch.sweep import run_sweep

        return run_sweep(given)
    from k3lab.launch.single import run_single

    return run_single(given)


@app.command("eval")
def evaluate(overrides: Overrides = None, as_json: AsJson = False) -> int:
    """Evaluate a run's newest checkpoint on held-out data: k3lab eval run=FOLDER [KEY=VALUE]..."""
    own, rest = _own(overrides, {"run": None})
    config = load_folder(_folder(own["run"], "eval"), rest)
    from k3lab.training.evaluate import evaluate as run

    metrics = run(config, Path(own["run"]))
    if as_json:
        print(json.dumps(metrics))
    else:
        table = Table("metric", "value")
        for name, value in metrics.items():
            table.add_row(name, f"{value:.6g}" if isinstance(value, float) else str(value))
        Console().print(table)
    return 0


@app.command()
def generate(overrides: Overrides = None) -> int:
    """Continue a prompt with a run's newest checkpoint: k3lab generate run=FOLDER prompt='def ' max_new_tokens=100."""
    defaults = {"run": None, "prompt": "", "max_new_tokens": 200, "seed": 0, "temperature": 1.0, "top_k": 0}
    own, rest = _own(overrides, defaults)
    _bounded(own, "max_new_tokens", 1, 1_000_000)
    _bounded(own, "seed", 0, 2**63 - 1)
    _bounded(own, "top_k", 0, 1_000_000)
    if not 0 <= own["temperature"] <= 100:
        raise UserError(f"temperature={own['temperature']}: must lie in [0, 100]; 0 takes the likeliest token")
    folder = Path(own.pop("run") or _folder(None, "generate"))
    config = load_folder(_folder(str(folder), "generate"), rest)
    from k3lab.training.generate import generate as run

    print(run(config, folder, **own))
    return 0


@app.command()
def audit(overrides: Overrides = None, as_json: AsJson = False) -> int:
    """Count parameters, floating-point operations and decoding state of a configuration, without any weights."""
    config = load(overrides or [])
    from k3lab.model.audit import audit_config, print_audit

    result = audit_config(config)
    if as_json:
        print(json.dumps(result))
    else:
        print_audit(result)
    return 0


@app.command()
def bench(
    what: Annotated[str, typer.Argument(metavar="kda", help="The kernel to time.")],
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Keep the figures here.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
) -> int:
    """Time a kernel beside its peers and its floor, all in one run."""
    if what not in BENCHES:
        raise UserError(f"bench {what}: no such benchmark; allowed: {', '.join(BENCHES)}{nearest(what, BENCHES)}")
    if device not in DEVICES:
        raise UserError(f"--device {device}: must be one of {', '.join(DEVICES)}{nearest(device, DEVICES)}")
    from k3lab.bench.run import run_bench

    return run_bench(what, json_file, device)


data_app = typer.Typer(no_args_is_help=True, help="Prepare token files for data=shards.")
app.add_typer(data_app, name="data")


@data_app.command()
def prepare(
    inputs: Annotated[list[Path], typer.Argument(help="Files or folders of text.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to make.")],
    tokenizer: Annotated[Path | None, typer.Option(help="A tokenizer.json; without it tokens are bytes.")] = None,
    validation_fraction: Annotated[float, typer.Option(help="Share of documents held out.")] = 0.01,
) -> int:
    """Tokenise text once into memory-mapped files: k3lab data prepare corpus/ -o tokens/."""
    from k3lab.data.prepare import prepare as run

    run(inputs, output, tokenizer, validation_fraction)
    print(output)
    return 0


@data_app.command()
def bpe(
    inputs: Annotated[list[Path], typer.Argument(help="Files or folders of text.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The tokenizer.json to write.")],
    vocab_size: Annotated[int, typer.Option(min=257, help="Tokens, the 256 bytes among them.")] = 4096,
) -> int:
    """Train a byte-pair encoding: k3lab data bpe corpus/ -o tokenizer.json."""
    from k3lab.data.tokenize import train_bpe

    print(f"{output}: {train_bpe(inputs, vocab_size, output)} tokens")
    return 0


@app.command()
def report(
    targets: Annotated[list[str], typer.Argument(metavar="EXPERIMENT|RUN...", help="Names, run ids or run folders.")],
    output: Annotated[Path, typer.Option(help="Folder with the runs and their store.")] = Path("runs"),
    baseline: Annotated[str | None, typer.Option(help="The arm that others are compared with.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the report.")] = None,
    metric: Annotated[str | None, typer.Option(help="What arms are ranked by, such as val/loss.")] = None,
    uri: Annotated[str | None, typer.Option(help="The store's address, if it is not in the runs' folder.")] = None,
) -> int:
    """Compare runs: one HTML page, a Markdown twin, results.csv and figures."""
    from k3lab.report.run import run_report

    return run_report(targets, output, baseline, out, metric, uri)


@app.command()
def ui(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = 5000,
    output: Annotated[str, typer.Option(help="Folder with the runs and their store.")] = "runs",
) -> int:
    """Open MLflow's dashboard on the run store, on this machine only."""
    from k3lab.tracking.server import serve

    return serve(Path(output), port)


def _own(overrides: list[str] | None, defaults: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Split a verb's own keys from the overrides of the configuration, and convert them to their types."""
    own, rest = dict(defaults), []
    for text in overrides or []:
        override = parse(text)
        if override.key not in defaults:
            if "." not in override.key and override.key not in groups() and override.key != "seed":
                names = [*defaults, *groups()]
                raise UserError(f"unknown key '{override.key}'{nearest(override.key, names)}")
            rest.append(text)
            continue
        default = defaults[override.key]
        kind = str if default is None else type(default)
        try:
            own[override.key] = kind(override.value)
        except (TypeError, ValueError) as error:
            words = {int: "a whole number", float: "a number", str: "text"}
            raise UserError(f"{override.key}={override.value}: must be {words[kind]}") from error
    return own, rest


def _bounded(own: dict[str, Any], key: str, low: int, high: int) -> None:
    if not low <= own[key] <= high:
        raise UserError(f"{key}={own[key]}: must lie in [{low}, {high}]")


def _folder(run: str | None, verb: str) -> Path:
    if run is None:
        raise UserError(f"run= is missing: k3lab {verb} run=FOLDER, with the folder that a training printed last")
    folder = Path(run)
    if not folder.is_dir():
        beside = [p.name for p in folder.parent.iterdir() if p.is_dir()] if folder.parent.is_dir() else []
        raise UserError(f"run={run}: no such folder{nearest(folder.name, beside)}")
    return folder


def main() -> None:
    """Run the command line; every mistake of the user becomes one line and exit code 2."""
    run: Callable[..., Any] = app
    try:
        code = run(standalone_mode=False)
    except UserError as error:
        code = fail(str(error))
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        # typer's own refusals: unknown verbs and options. Which module they live in differs between versions.
        if hasattr(error, "format_message"):
            code = fail(error.format_message()) if error.format_message() else 2
        elif os.environ.get(TRACEBACK):
            raise
        else:
            fail(f"{type(error).__name__}: {error}; this is a fault of k3lab: {TRACEBACK}=1 shows where")
            code = 1
    with suppress(BrokenPipeError):  # `k3lab --help | head`
        sys.stdout.flush()
    sys.exit(code or 0)


def fail(message: str) -> int:
    """Print one line on standard error and return the exit code of a user's mistake."""
    print(f"k3lab: {mask(' '.join(message.split()))}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
