"""The courier's promises, against a backend that fails on demand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k3lab.config.errors import UserError
from k3lab.tracking import courier
from k3lab.tracking.base import Backend, Point, RunRequest, Stored
from k3lab.tracking.courier import Courier
from k3lab.tracking.local import MetricsFile


class Memory(Backend):
    """Keeps everything in lists; raises ``fails`` from every call while it is set."""

    def __init__(self) -> None:
        super().__init__(None, Path())
        self.points: list[Point] = []
        self.batches: list[int] = []
        self.files: list[str] = []
        self.status: str | None = None
        self.fails: Exception | None = None
        self.only_in: str | None = None
        self.calls = 0
        self.held = Stored({}, {})

    def _maybe(self, where: str) -> None:
        self.calls += 1
        if self.fails is not None and self.only_in in (None, where):
            raise self.fails

    def open(self, request: RunRequest) -> str:
        self._maybe("open")
        return request.run_id or "r1"

    def stored(self, run_id: str, after: int) -> Stored:
        return self.held

    def log(self, run_id: str, points: list[Point]) -> None:
        self._maybe("log")
        self.points += points
        self.batches.append(len(points))

    def artifact(self, run_id: str, path: str, folder: str | None) -> None:
        self._maybe("artifact")
        self.files.append(path)

    def finish(self, run_id: str, status: str) -> None:
        self._maybe("finish")
        self.status = status

    def transient(self, error: Exception) -> bool:
        return isinstance(error, ConnectionError)


Make = Callable[..., tuple[Courier, Memory, MetricsFile, list[dict[str, Any]]]]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(courier, "RETRY_S", 0.3)

    def build(**request: Any) -> tuple[Courier, Memory, MetricsFile, list[dict[str, Any]]]:
        backend, events = Memory(), []
        run = RunRequest(str(tmp_path), str(tmp_path), "e", "n", **request)
        file = MetricsFile(tmp_path, run.start_step)
        return Courier(backend, run, lambda **event: events.append(event)), backend, file, events

    return build


def pairs(backend: Memory) -> list[tuple[str, int]]:
    return [(p.name, p.step) for p in backend.points]


def test_everything_arrives_in_order_in_batches(make: Make) -> None:
    it, backend, file, events = make()
    it.open()
    for step in range(30):
        file.append({f"m{i}": float(i * step) for i in range(90)}, step, 1.0)
    it.drain()
    assert pairs(backend) == [(f"m{i}", s) for s in range(30) for i in range(90)]
    assert backend.batches == [1000, 1000, 700]
    file.append({f"m{i}": 1.0 for i in range(9000)}, 30, 1.0)  # one line longer than a read
    it.drain()
    assert len(backend.points) == 2700 + 9000
    assert max(backend.batches) == 1000
    assert it.finish("finished", [])
    assert backend.status == "finished"
    assert events == [{"event": "opened", "run_id": "r1"}]


def test_a_line_under_way_waits_for_its_end(make: Make, tmp_path: Path) -> None:
    it, backend, _, _ = make()
    it.open()
    with (tmp_path / "metrics.jsonl").open("ab", buffering=0) as file:
        file.write(b'{"step": 1, "time": 1.0, ')
        it.drain()
        assert backend.points == []
        file.write(b'"a": 2.5}\n')
        it.drain()
    assert backend.points == [Point("a", 2.5, 1.0, 1)]


def test_resume_sends_what_is_missing_and_nothing_twice(make: Make) -> None:
    it, backend, file, _ = make()
    it.open()
    for step in range(1, 6):
        file.append({"train/loss": float(step), "late": 1.0}, step, 1.0)
    file.close()
    # The store has the loss until step 7 (two steps past the checkpoint), `late` until step 3.
    it, backend, file, _ = make(run_id="r1", start_step=5)
    backend.held = Stored({"train/loss": 7, "late": 3}, {"train/loss": {6, 7}})
    it.open()
    for step in range(6, 10):
        file.append({"train/loss": float(step), "late": 1.0}, step, 1.0)
    it.drain()
    assert sorted(pairs(backend)) == sorted([("late", s) for s in range(4, 10)] + [("train/loss", s) for s in (8, 9)])


def test_a_dead_backend_is_given_up_once_and_loses_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    it, backend, file, events = make()
    it.open()
    backend.fails = ConnectionError("refused")
    file.append({"a": 1.0}, 1, 1.0)
    it.drain()
    assert it.down
    assert backend.calls > 2, "was not repeated"
    calls = backend.calls
    file.append({"a": 2.0}, 2, 1.0)
    it.drain()
    it.flush()  # too early for another try
    assert backend.calls == calls
    monkeypatch.setattr(courier, "PROBE_S", 0.0)
    it.flush()
    assert backend.calls == calls + 1
    backend.fails = None
    it.flush()
    assert not it.down
    file.append({"a": 3.0}, 3, 1.0)
    assert it.finish("finished", [])
    assert pairs(backend) == [("a", 1), ("a", 2), ("a", 3)]
    assert [e["event"] for e in events] == ["opened", "down", "up"]


def test_a_server_that_comes_late_gets_the_whole_run(make: Make) -> None:
    it, backend, file, events = make()
    backend.fails = ConnectionError("refused")
    it.open()
    file.append({"a": 1.0}, 1, 1.0)
    it.drain()
    backend.fails = None
    assert it.finish("finished", [])
    assert pairs(backend) == [("a", 1)]
    assert backend.status == "finished"
    assert [e["event"] for e in events] == ["down", "up"]


def test_a_refusal_is_not_repeated(make: Make) -> None:
    it, backend, file, events = make()
    it.open()
    backend.fails = RuntimeError("run was deleted")
    calls = backend.calls
    file.append({"a": 1.0}, 1, 1.0)
    it.drain()
    assert backend.calls == calls + 1
    assert "run was deleted" in events[-1]["message"]


def test_status_is_set_although_metrics_failed(make: Make) -> None:
    it, backend, file, _ = make()
    it.open()
    backend.fails, backend.only_in = RuntimeError("bad metric"), "log"
    file.append({"a": 1.0}, 1, 1.0)
    assert not it.finish("interrupted", [])
    assert backend.status == "interrupted"


def test_a_users_mistake_stops_a_new_run_but_not_a_resumed_one(make: Make) -> None:
    it, backend, _, _ = make()
    backend.fails = UserError("experiment was deleted")
    with pytest.raises(UserError, match="deleted"):
        it.open()
    it, backend, _, events = make(run_id="r1", start_step=5)
    backend.fails = UserError("experiment was deleted")
    it.open()
    assert events[-1]["event"] == "down"


def test_artifacts_wait_for_the_backend_and_may_be_absent(make: Make, tmp_path: Path) -> None:
    it, backend, _, _ = make()
    it.open()
    there = tmp_path / "figure.svg"
    there.write_text("x")
    backend.fails = ConnectionError()
    it.artifact(str(there), None)
    backend.fails = None
    assert it.finish("finished", [str(tmp_path / "absent.json")])
    assert backend.files == [str(there)]
