"""results.csv: one row a run, with the settings in which arms differ and every metric at the step compared."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from k3lab.report.analysis import Analysis
from k3lab.report.metrics import KNOWN

COLUMNS = (
    "experiment",
    "part",
    "arm",
    "seed",
    "status",
    "counts",
    "steps",
    "compared_at",
    "tokens",
    "wall_s",
)


def table(analyses: Sequence[Analysis]) -> str:
    """Return the CSV: raw values, that is accuracies and shares between 0 and 1; empty where there is none."""
    keys = list(dict.fromkeys(f.key for a in analyses for f in a.stratum.factors))
    runs = [run for a in analyses for arm in a.stratum.arms for run in arm.runs]
    metrics = [n for n in KNOWN if any(n in run.series for run in runs)]
    metrics += [a.main for a in analyses if a.main not in metrics]
    metrics = list(dict.fromkeys(metrics))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, *keys, *metrics, "run_id", "run"])
    for analysis in analyses:
        for arm in analysis.stratum.arms:
            for run in arm.runs:
                counts = run in analysis.usable[arm.name]
                until = analysis.step if counts else run.steps
                wall = run.summary.get("wall_s")
                writer.writerow(
                    [
                        *(
                            run.experiment,
                            analysis.stratum.title,
                            arm.name,
                            run.seed,
                            run.status,
                            int(counts),
                        ),
                        *(
                            run.steps,
                            until,
                            "" if run.tokens is None else run.tokens,
                            "" if wall is None else wall,
                        ),
                        *(arm.config.get(key, "") for key in keys),
                        *(_number(run.value(name, until)) for name in metrics),
                        *(run.id, run.label),
                    ]
                )
    return text.getvalue()


def _number(value: float) -> str:
    return repr(float(value)) if math.isfinite(value) else ""
