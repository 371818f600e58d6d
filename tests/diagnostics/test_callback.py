"""The schedule of the callback, its names, and that a training run does not notice it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from k3lab.diagnostics.callback import DiagnosticsCallback
from k3lab.diagnostics.settings import DiagnosticsSettings

COUNTS = torch.tensor([[8, 8, 8, 8, 8, 8], [18, 6, 6, 6, 6, 6]])


class Log(list):
    def log(self, metrics: dict[str, float], step: int) -> None:
        self.append((step, metrics))


def train(
    model: Any, batch: dict[str, Tensor], callback: DiagnosticsCallback | None, steps: int, start: int = 0
) -> Log:
    """Micro-batches in pairs, with the hooks in Lightning's order."""
    module = SimpleNamespace(model=model, step=start, last_counts=None, tracker=Log())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for micro in range(2 * steps):
        if callback is not None:
            callback.on_train_batch_start(SimpleNamespace(), module, batch, micro)
        logits = model(batch["tokens"]).logits_BTV
        F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten()).backward()
        if micro % 2:
            optimizer.step()
            optimizer.zero_grad()
            module.step += 1
            module.last_counts = COUNTS
        if callback is not None:
            callback.on_train_batch_end(SimpleNamespace(), module, None, batch, micro)
    return module.tracker


def test_schedule(make_model: Any, batch: dict[str, Tensor]) -> None:
    def steps(start: int, last: int | None = None, **kwargs: Any) -> list[int]:
        callback = DiagnosticsCallback(DiagnosticsSettings(**kwargs), max_steps=last)
        return [step for step, _ in train(make_model("prenorm"), batch, callback, 5, start)]

    assert steps(0, every=2) == [0, 2, 4]
    assert steps(0, every=1) == [0, 1, 2, 3, 4, 5]
    assert steps(0, every=50) == [0]
    assert steps(49) == [50]  # the default on a CPU
    assert DiagnosticsSettings().steps_between("cuda") == 200
    assert DiagnosticsSettings(every=3).steps_between("cuda") == 3
    assert steps(4, every=2) == [6, 8]  # resumed: the measurement of step 4 was made before
    assert steps(0, every=2, last=5) == [0, 2, 4, 5]  # and after the last step
    assert steps(0, every=5, last=5) == [0, 5]
    assert steps(0, enabled=False, last=5) == []


def test_load_is_fresh_between_measurements(make_model: Any, batch: dict[str, Tensor]) -> None:
    callback = DiagnosticsCallback(DiagnosticsSettings(every=4), log_every=2)
    log = train(make_model("prenorm"), batch, callback, 6)
    assert [step for step, _ in log] == [0, 2, 4, 6]
    families = [{name.split("/")[0] for name in metrics} for _, metrics in log]
    assert families == [{"balance", "depth", "decay"}, {"balance"}, {"balance", "depth", "decay"}, {"balance"}]
    assert "balance/max_vio" in log[1][1]
    assert "balance/bias_spread" in log[2][1]
    assert len(train(make_model("prenorm"), batch, DiagnosticsCallback(DiagnosticsSettings(enabled=False), 1), 2)) == 0


def test_a_dense_model_logs_nothing_of_routers(make_model: Any, batch: dict[str, Tensor]) -> None:
    model = make_model("prenorm")
    for layer in model.layers:
        layer.ffn.router = None
    module = SimpleNamespace(model=model, step=1, last_counts=None, tracker=Log())
    callback = DiagnosticsCallback(DiagnosticsSettings(every=2), log_every=1)
    callback.step_before = 0
    callback.on_train_batch_end(SimpleNamespace(), module, None, batch, 0)
    module.step = 2
    callback.on_train_batch_end(SimpleNamespace(), module, None, batch, 1)
    assert [step for step, metrics in module.tracker if metrics] == [2]
    assert not any(name.startswith("balance/") for name in module.tracker[-1][1])
    assert callback.snapshot is not None
    assert callback.snapshot.biases == {}


def test_snapshot_is_of_the_last_measurement(make_model: Any, batch: dict[str, Tensor]) -> None:
    callback = DiagnosticsCallback(DiagnosticsSettings(every=2))
    model = make_model("prenorm")
    train(model, batch, callback, 5)
    assert callback.snapshot is not None
    assert (callback.snapshot.step, callback.snapshot.tokens) == (4, 12)
    assert set(callback.snapshot.half_lives) == {0, 1}
    assert callback.snapshot.half_lives[0].shape == (2, 4)
    assert callback.snapshot.bounds == {0: -5.0, 1: -5.0}
    kept = callback.snapshot.biases[1].clone()
    model.routers[0].bias.zero_()
    assert torch.equal(callback.snapshot.biases[1], kept)  # a copy


@pytest.mark.parametrize("residual", ["prenorm", "block_attnres"])
def test_names_and_values(make_model: Any, batch: dict[str, Tensor], residual: str) -> None:
    log = train(make_model(residual), batch, DiagnosticsCallback(DiagnosticsSettings(every=1)), 1)
    (_, before), (_, after) = log
    assert set(before) == set(after)
    for name in (
        *(f"balance/{m}" for m in ("max_vio", "max_vio_floor", "min_vio", "cv", "entropy", "dead_experts")),
        *(
            "balance/drop_rate_1.00",
            "balance/layer_02/drop_rate_1.25",
            "balance/bias_spread",
            "balance/layer_01/bias_q25",
        ),
        *("balance/layer_01/max_vio", "balance/layer_02/entropy"),
        *("decay/half_life_median", "decay/dead_fraction", "decay/at_bound_fraction", "decay/layer_01/dead_fraction"),
        *(f"depth/{m}/layer_{i:02d}" for m in ("output_rms", "grad_rms", "block_influence") for i in range(6)),
        *(f"depth/{m}/layer_05" for m in ("update_ratio", "update_cosine", "effective_rank", "angular_distance")),
    ):
        assert name in after
    assert all(isinstance(v, float) for v in after.values())
    assert ("depth/source_weight/output/source_03" in after) == (residual == "block_attnres")
    assert not any("layer_00" in name for name in after if name.startswith("balance/"))  # dense
    # before the first step the probe's own load, afterwards that of the global batch
    assert after["balance/max_vio"] == pytest.approx(18 / 8 - 1)
    assert before["balance/max_vio"] != pytest.approx(18 / 8 - 1)


def test_training_is_the_same_to_the_bit(make_model: Any, batch: dict[str, Tensor]) -> None:
    results = []
    for callback in (None, DiagnosticsCallback(DiagnosticsSettings(every=1))):
        model = make_model("block_attnres", dropout=0.3)
        torch.manual_seed(7)
        train(model, batch, callback, 3)
        results.append(model.state_dict())
    assert all(torch.equal(v, results[1][k]) for k, v in results[0].items())


@pytest.mark.parametrize("key", ["every", "probe_sequences", "sample_tokens"])
def test_settings_refuse_zero(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key}=0"):
        DiagnosticsSettings(**{key: 0})
