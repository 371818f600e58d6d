"""Sweeps whose jobs are processes that train nothing: ``python objective.py OVERRIDE...`` runs one.

A job's loss falls from step to step to a value that OBJECTIVE, a JSON object in the environment, gives for its
index (``{"loss": {"3": 5.0}}``; null: NaN; "crash": it dies without a word); the others have the squared
distance of log10 of their learning rate from −2. ``pause`` is the seconds between two validations.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from pathlib import Path

from k3lab.tracking.local import MetricsFile, write_summary
from k3lab.training.lock import RunLock


def job(file: Path) -> int:
    """Do what a training does, as a sweep sees it."""
    told, how = json.loads(file.read_text()), json.loads(os.environ["OBJECTIVE"])
    folder, stops = file.parent, []
    signal.signal(signal.SIGTERM, lambda number, _: stops.append(number))
    values = dict(text.split("=", 1) for text in told["overrides"])
    steps, every = int(values["trainer.max_steps"]), int(values["trainer.val_every"])
    final = how.get("loss", {}).get(str(told["index"]), (math.log10(float(values["optim.lr"])) + 2) ** 2)
    with RunLock(folder), (folder / "spans.txt").open("a") as spans:
        spans.write(f"{time.time()} ")
        metrics, done = MetricsFile(folder), 0
        summary = {"run_id": None, "status": "running", "steps": 0}
        write_summary(folder, summary)
        if final == "crash":
            os._exit(3)
        for done in range(every, steps + 1, every):
            time.sleep(how.get("pause", 0.0))
            loss = math.nan if final is None else final + 1 / done
            metrics.append({"train/loss": loss, "val/loss": loss}, done, time.time())
            if stops:
                break
        spans.write(f"{time.time()}\n")
        status = "interrupted" if done < steps else "finished"
        write_summary(folder, {**summary, "status": status, "steps": done, "metrics": {"val/loss": loss}})
    return 0 if status == "finished" else 128 + stops[0]


def main() -> int:
    """Run a job that is given, else a sweep."""
    if len(sys.argv) == 2 and sys.argv[1].endswith("job.json"):
        return job(Path(sys.argv[1]))
    from k3lab.launch import local
    from k3lab.launch.sweep import run_sweep

    local.job_command = lambda file: [sys.executable, __file__, str(file)]
    return run_sweep(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
