"""strategy=single: one device, and it says so."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from k3lab.strategy.single import Single, SingleSettings


def test_several_devices_are_refused() -> None:
    SingleSettings().check(SimpleNamespace(trainer=SimpleNamespace(devices=1)))
    with pytest.raises(ValueError, match=r"trainer\.devices=2: must be 1 with strategy=single"):
        SingleSettings().check(SimpleNamespace(trainer=SimpleNamespace(devices=2)))


def test_the_trainer_gets_one_device_and_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning.pytorch import Trainer

    monkeypatch.setenv("SLURM_NTASKS", "4")  # inside an allocation: Lightning would expect four processes
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    strategy = Single(SingleSettings())
    trainer = Trainer(**strategy.trainer_kwargs("cpu"), logger=False, enable_checkpointing=False)
    assert (trainer.world_size, trainer.num_devices, trainer.strategy.root_device.type) == (1, 1, "cpu")
    assert (strategy.rank, strategy.world, strategy.group) == (0, 1, None)
