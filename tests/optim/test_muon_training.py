"""optim=muon as a torch optimizer: state, resume, closures, steps counted once, training."""

import copy

import pytest
import torch
from torch import nn

from k3lab.config.load import load
from k3lab.config.registry import component
from k3lab.model.build import build_model
from k3lab.optim.muon import Muon
from k3lab.optim.muon_adamw import orthogonalise
from k3lab.training.checkpoint import read, write
from k3lab.training.state import capture, restore
from tests.optim.muon_toy import SETTINGS, give_gradients, oracle, toy


def test_resume_through_a_checkpoint_is_bitwise(tmp_path):
    def train(model, optimizer, seeds):
        for seed in seeds:
            give_gradients(model, seed)
            optimizer.step()

    model = toy(torch.float32)
    optimizer = Muon.build(SETTINGS, model)
    train(model, optimizer, range(3))
    folder = write(tmp_path, capture(3, model, optimizer, {}), keep=1)
    other = toy(torch.float32, seed=9)
    resumed = Muon.build(SETTINGS, other)
    restore(other, resumed, read(folder), folder)
    copied = copy.deepcopy(optimizer)
    for kept in (resumed, copied):
        state, loaded = optimizer.state_dict(), kept.state_dict()
        assert loaded["param_groups"] == state["param_groups"]
        for index, values in state["state"].items():
            assert values.keys() == loaded["state"][index].keys()
            for key, value in values.items():
                assert (
                    value == loaded["state"][index][key]
                    if key == "step"
                    else torch.equal(value, loaded["state"][index][key])
                )
    train(model, optimizer, range(3, 6))
    train(other, resumed, range(3, 6))
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, other.get_parameter(name)), name


def test_the_same_run_gives_the_same_bits():
    def run():
        model = toy(torch.float32)
        optimizer = Muon.build(SETTINGS, model)
        for seed in range(4):
            give_gradients(model, seed)
            optimizer.step()
        return model.state_dict()

    first, second = run(), run()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_gradient_that_comes_late_starts_its_own_count():
    model = toy()
    optimizer = Muon.build(SETTINGS, model)
    give_gradients(model, 0)
    model.A_log.grad = None
    optimizer.step()
    assert model.A_log not in optimizer.state
    give_gradients(model, 1)
    before = model.A_log.detach().clone()
    optimizer.step()
    assert optimizer.state[model.A_log]["step"] == 1
    assert optimizer.state[model.queries]["step"] == 2
    expected = before - SETTINGS.lr * model.A_log.grad / (model.A_log.grad.abs() + SETTINGS.eps)
    torch.testing.assert_close(model.A_log.detach(), expected, rtol=1e-12, atol=1e-14)


def test_the_closure_runs_once_with_gradients_and_hooks_fire_once():
    model = toy()
    optimizer = Muon.build(SETTINGS, model)
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append("hook"))

    def closure():
        calls.append("closure")
        loss = (model.head(model.embedding.weight) ** 2).mean()
        loss.backward()
        return loss

    before = model.head.weight.detach().clone()
    loss = optimizer.step(closure)
    assert calls == ["closure", "hook"]
    assert loss.item() > 0
    assert not torch.equal(before, model.head.weight)


def test_lightning_counts_each_step_once(tmp_path):
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.model = toy(torch.float32)

        def training_step(self, batch, index):
            return self.model.attention.out(self.model.embedding.weight).square().mean()

        def configure_optimizers(self):
            return Muon.build(SETTINGS, self.model)

    module = Module()
    trainer = Trainer(
        max_steps=4, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu",
        enable_model_summary=False, default_root_dir=tmp_path, accumulate_grad_batches=2,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(range(8), batch_size=1))
    assert trainer.global_step == 4
    assert trainer.optimizers[0].state[module.model.embedding.weight]["step"] == 4


def test_a_model_learns_as_with_adamw():
    """On the same few tokens at the same rate, which the scale of the update is there for."""
    losses = {}
    for name in ("muon", "adamw"):
        config = load([f"optim={name}", "optim.lr=3e-3", "model.layers=2", "ffn=swiglu", "mixer=[softmax_attention]"])
        torch.manual_seed(0)
        model = build_model(config, 32)
        optimizer = component("optim", name).build(config.optim, model)
        tokens = torch.randint(32, (4, 17), generator=torch.Generator().manual_seed(1))
        for _ in range(30):
            logits = model(tokens[:, :-1]).logits_BTV
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses[name] = loss.item()
    assert max(losses.values()) < 0.1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_it_works_in_bf16_and_repeats():
    wanted = oracle(toy(torch.float32), range(3))
    results = []
    for _ in range(2):
        model = toy(torch.float32).cuda()
        optimizer = Muon.build(SETTINGS, model)
        for seed in range(3):
            give_gradients(model.cpu(), seed)
            model.cuda()
            optimizer.step()
        results.append(model.cpu().state_dict())
    for name, value in wanted.items():
        change = (value - toy(torch.float32).get_parameter(name).double()).norm().clamp_min(1e-3)
        assert (results[0][name].double() - value).norm() / change < 0.03, name
        assert torch.equal(results[0][name], results[1][name])
    assert orthogonalise(torch.randn(2, 8, 8, device="cuda"), 5).dtype == torch.bfloat16
