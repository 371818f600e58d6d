"""Following a job's metrics."""

from __future__ import annotations

from pathlib import Path

from k3lab.launch.watch import Watch
from k3lab.tracking.local import METRICS, MetricsFile


def test_it_reads_what_is_new_and_complete(tmp_path: Path) -> None:
    watch = Watch(tmp_path, "val/loss")
    watch.read()
    assert (watch.step, watch.metrics, watch.points) == (0, {}, {})
    file = MetricsFile(tmp_path)
    file.append({"train/loss": 3.0}, 1, 0.0)
    watch.read()
    file.append({"train/loss": 2.0, "val/loss": 2.5}, 2, 0.0)
    with (tmp_path / METRICS).open("a") as half:
        half.write('{"step": 3, "time": 0.0, "train')
    watch.read()
    assert (watch.step, watch.metrics) == (2, {"train/loss": 2.0, "val/loss": 2.5})
    with (tmp_path / METRICS).open("a") as rest:
        rest.write('/loss": 1.5}\n')
    watch.read()
    assert (watch.step, watch.metrics["train/loss"], watch.points) == (3, 1.5, {2: 2.5})
    file.close()


def test_a_resumed_job_starts_another_file(tmp_path: Path) -> None:
    watch = Watch(tmp_path, "val/loss")
    file = MetricsFile(tmp_path)
    for step in range(1, 6):
        file.append({"val/loss": 10.0 - step}, step, 0.0)
    watch.read()
    assert sorted(watch.points) == [1, 2, 3, 4, 5]
    file.close()
    file = MetricsFile(tmp_path, start_step=3)
    watch.read()
    assert (watch.step, sorted(watch.points)) == (3, [1, 2, 3])
    file.append({"val/loss": 6.0}, 4, 0.0)
    watch.read()
    assert watch.points == {1: 9.0, 2: 8.0, 3: 7.0, 4: 6.0}
    file.close()
