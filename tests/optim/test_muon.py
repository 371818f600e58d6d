"""optim=muon: against a plain float64 oracle; heads, experts, resume, and one step counted once."""

import copy
import math

import pytest
import torch
import yaml
from torch import nn

from k3lab.config.load import load
from k3lab.config.registry import component, conf_dir
from k3lab.model.build import build_model
from k3lab.optim import muon_adamw
from k3lab.optim.matrices import Stack, divide
from k3lab.optim.muon import Muon, MuonSettings
from k3lab.optim.muon_adamw import orthogonalise
from k3lab.training.checkpoint import read, write
from k3lab.training.state import capture, restore

SETTINGS = MuonSettings(lr=0.02, weight_decay=0.5, momentum=0.9, rms=0.3, betas=[0.8, 0.9], eps=1e-3)


class Attention(nn.Module):
    """Two query heads of 6 rows, four value heads of 3; keys and values of a head side by side in kv_up."""

    def __init__(self):
        super().__init__()
        self.heads, self.value_heads, self.value_dim = 2, 4, 3
        self.q = nn.Sequential(nn.Linear(8, 5, bias=False), nn.LayerNorm(5), nn.Linear(5, 12, bias=False))
        self.v = nn.Linear(8, 12)
        self.kv_up = nn.Linear(8, 16, bias=False)
        self.out = nn.Linear(8, 8, bias=False)


class Toy(nn.Module):
    """A parameter of every kind."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.attention = Attention()
        self.conv = nn.Parameter(torch.empty(8, 1, 4))
        self.w_in = nn.Parameter(torch.empty(3, 6, 8))  # experts
        self.A_log = nn.Parameter(torch.empty(2))
        self.queries = nn.Parameter(torch.empty(4, 8))
        self.idle = nn.Parameter(torch.empty(4, 4))  # never gets a gradient
        self.head = nn.Linear(8, 10, bias=False)


def toy(dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    model = Toy().to(dtype)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
    return model


def give_gradients(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        gradient = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.grad = None if name == "idle" else gradient.to(parameter.dtype)


# ---- the oracle: one matrix at a time, in float64, as the papers write it -----------------------------------

# Which rows of which parameters are one matrix.
MATRICES = {
    "attention.q.0.weight": [slice(0, 5)],
    "attention.q.2.weight": [slice(0, 6), slice(6, 12)],
    "attention.v.weight": [slice(i, i + 3) for i in (0, 3, 6, 9)],
    "attention.kv_up.weight": [slice(0, 5), slice(5, 8), slice(8, 13), slice(13, 16)],
    "attention.out.weight": [slice(0, 8)],
    "w_in": [0, 1, 2],
}
DECAYED = ("conv", "head.weight")


def newton_schulz(matrix):
    x = matrix / (matrix.norm() + 1e-7)
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * (x @ x.T) @ x + 2.0315 * (x @ x.T) @ (x @ x.T) @ x
    return x


def oracle(model, seeds):
    """Values of all parameters after one step for each seed."""
    s = SETTINGS
    values = {name: p.detach().double().clone() for name, p in model.named_parameters()}
    first = {name: torch.zeros_like(v) for name, v in values.items()}
    second = {name: torch.zeros_like(v) for name, v in values.items()}
    for step, seed in enumerate(seeds, start=1):
        give_gradients(model, seed)
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                continue
            gradient, value = parameter.grad.double(), values[name]
            if name in MATRICES:
                first[name] = s.momentum * first[name] + gradient
                direction = gradient + s.momentum * first[name]
                value *= 1 - s.lr * s.weight_decay
                for rows in MATRICES[name]:
                    update = newton_schulz(direction[rows])
                    value[rows] -= s.lr * s.rms * math.sqrt(max(update.shape)) * update
                continue
            first[name] = 0.8 * first[name] + 0.2 * gradient
            second[name] = 0.9 * second[name] + 0.1 * gradient**2
            if name in DECAYED:
                value *= 1 - s.lr * s.weight_decay
            root = (second[name] / (1 - 0.9**step)).sqrt() + s.eps
            value -= s.lr * first[name] / (1 - 0.8**step) / root
    return values


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-4)])
def test_five_steps_against_the_oracle(dtype, tolerance):
    model = toy(dtype)
    wanted = oracle(toy(dtype), range(5))
    optimizer = Muon.build(SETTINGS, model)
    for seed in range(5):
        give_gradients(model, seed)
        optimizer.step()
    for name, parameter in model.named_parameters():
        change = wanted[name] - toy(dtype).get_parameter(name).double()
        error = (parameter.double() - wanted[name]).norm() / change.norm().clamp_min(1e-3)
        assert error < tolerance, name
    assert torch.equal(model.idle, toy(dtype).idle)


def test_adamw_is_torchs():
    model, other = toy(torch.float32), toy(torch.float32)
    optimizer = Muon.build(SETTINGS, model)
    names = {id(p): name for name, p in model.named_parameters()}
    groups = [{**g, "params": [other.get_parameter(names[id(p)]) for p in g["params"]]} for g in optimizer.param_groups]
    reference = torch.optim.AdamW([{**g, "foreach": True} for g in groups if g["kind"] == "adamw"])
    for seed in range(3):
        give_gradients(model, seed)
        give_gradients(other, seed)
        optimizer.step()
        reference.step()
    for group in groups[1:]:
        for parameter in group["params"]:
            name = next(n for n, p in other.named_parameters() if p is parameter)
            torch.testing.assert_close(model.get_parameter(name), parameter, rtol=1e-6, atol=1e-7)


# ---- which parameters, which heads --------------------------------------------------------------------------


def test_every_parameter_is_in_one_group():
    model = toy()
    groups = Muon.build(SETTINGS, model).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    found = [[names[id(p)] for p in group["params"]] for group in groups]
    assert sorted(found[0]) == sorted([*MATRICES, "idle"])
    assert sorted(found[1]) == ["conv", "head.weight"]
    rest = set(names.values()) - set(found[0]) - set(found[1])
    assert set(found[2]) == rest
    assert {"embedding.weight", "A_log", "queries", "attention.v.bias", "attention.q.1.weight"} <= rest
    assert sum(map(len, found)) == len(names)
    assert [group["weight_decay"] for group in groups] == [0.5, 0.5, 0.0]


def test_without_heads_projections_stay_whole():
    model = toy()
    stacks = divide(model, per_head=False).stacks
    assert stacks[model.attention.v.weight] == Stack(1, (12,))
    assert stacks[model.attention.kv_up.weight] == Stack(1, (16,))
    assert stacks[model.w_in] == Stack(3, (6,))


def test_a_module_may_tell_its_heads_itself():
    model = toy()
    model.attention.muon_heads = {"out.weight": (4,), "q.2.weight": (2, 1)}
    stacks = divide(model, per_head=True).stacks
    assert stacks[model.attention.out.weight] == Stack(2, (4,))
    assert stacks[model.attention.q[2].weight] == Stack(4, (2, 1))
    assert stacks[model.attention.v.weight] == Stack(1, (12,))
    model.attention.muon_heads = {"out.weight": (3,)}
    with pytest.raises(ValueError, match=r"attention.out.weight has 8 rows: must be a multiple of 3, one head's"):
        divide(model, per_head=True)


def test_rows_that_heads_do_not_divide_are_refused():
    model = toy()
    model.attention.heads = 5
    with pytest.raises(ValueError, match=r"Attention.q.2.weight has 12 rows: must be a multiple of its 5 heads"):
        divide(model, per_head=True)


@pytest.mark.parametrize("overrides", [[], ["mixer.mla.q_rank=16"], ["mixer.kda.value_heads=6", "mixer.kda.heads=3"]])
def test_the_heads_of_real_mixers(overrides):
    config = load(
        [
            "optim=muon",
            "mixer=[kda,mla,softmax_attention]",
            "model.pattern=[kda,mla,softmax_attention]",
            "model.layers=3",
            *overrides,
        ]
    )
    model = build_model(config, 64)
    stacks = divide(model, per_head=True).stacks
    kda, mla, attention = (layer.mixer for layer in model.decoder_layers)
    for mixer in (kda, mla, attention):
        for name, parameter in mixer.named_parameters():
            if parameter not in stacks:
                continue
            stack = stacks[parameter]
            last = mixer.q if isinstance(mixer.q, nn.Linear) else mixer.q[2]
            if parameter is last.weight or name in ("k.weight", "v.weight", "kv_up.weight"):
                heads = kda.value_heads if (mixer, name) == (kda, "v.weight") else mixer.heads
                assert stack.heads == heads > 1, name
            else:
                assert stack == Stack(1, (parameter.shape[0],)), name
    assert stacks[kda.q.weight].rows == (kda.key_dim,)
    assert stacks[mla.kv_up.weight].rows == (mla.nope_dim, mla.value_dim)
    experts = model.decoder_layers[0].ffn.experts
    assert stacks[experts.w_in] == Stack(experts.experts, (experts.w_in.shape[1],))
    assert model.decoder_layers[0].ffn.router.weight in stacks


def test_one_head_does_not_feel_another():
    """What one head's momentum is changes nothing for the others, unless the projection is taken whole."""
    for per_head in (True, False):
        moved = []
        for scale in (1.0, 100.0):
            model = toy()
            optimizer = Muon.build(MuonSettings(per_head=per_head), model)
            give_gradients(model, 0)
            model.attention.v.weight.grad[:3] *= scale
            optimizer.step()
            moved.append(model.attention.v.weight.detach()[3:])
        assert torch.allclose(*moved, rtol=1e-12) == per_head


# ---- Newton–Schulz ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 32, 32), (1, 8, 100), (3, 100, 8), (2, 1, 5)])
def test_singular_values_come_near_one_and_vectors_stay(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = orthogonalise(x, 5)
    assert y.shape == x.shape
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    inner = u.mT @ y @ v.mT
    new = torch.diagonal(inner, dim1=1, dim2=2)
    assert torch.allclose(inner, torch.diag_embed(new), atol=1e-9)
    large = new[s > 0.05 * s.amax(dim=1, keepdim=True)]
    assert large.min() > 0.6
    assert large.max() < 1.3


def test_zeros_stay_zeros_and_size_does_not_matter():
    x = torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(0))
    assert not orthogonalise(torch.zeros_like(x), 5).any()
    assert torch.allclose(orthogonalise(1000 * x, 5), orthogonalise(x, 5), atol=1e-4)
    for tiny in (1e-20, 1e-30):  # squares underflow; what died away must not come back
        assert orthogonalise(tiny * x, 5).abs().max() < 1e-6


def test_the_update_has_the_size_of_adamws():
    model = nn.Module()
    model.tall = nn.Parameter(torch.zeros(256, 64))
    model.wide = nn.Parameter(torch.zeros(64, 256))
    model.experts = nn.Parameter(torch.zeros(4, 96, 96))
    optimizer = Muon.build(MuonSettings(lr=1.0, weight_decay=0.0), model)
    give_gradients(model, 0)
    optimizer.step()
    for parameter in model.parameters():
        assert 0.15 < parameter.square().mean().sqrt() < 0.23


def test_large_stacks_are_cut_and_nothing_changes(monkeypatch):
    results = []
    for largest in (1 << 26, 20):
        monkeypatch.setattr(muon_adamw, "LARGEST", largest)
        model = toy()
        optimizer = Muon.build(SETTINGS, model)
        give_gradients(model, 0)
        optimizer.step()
        results.append(model.state_dict())
    for name in results[0]:
        torch.testing.assert_close(results[0][name], results[1][name], rtol=1e-12, atol=1e-14)


# ---- as a torch optimizer -----------------------------------------------------------------------------------


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


# ---- settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lr": 0.0}, "lr=0.0: must be positive"),
        ({"rms": 0.0}, "rms=0.0: must be positive"),
        ({"eps": 0.0}, "eps=0.0: must be positive"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1: must be zero or more"),
        ({"momentum": 1.0}, r"momentum=1.0: must lie in \[0, 1\)"),
        ({"steps": 0}, r"steps=0: must lie in \[1, 20\]"),
        ({"betas": [0.9]}, r"betas=\[0.9\]: must be two numbers"),
        ({"betas": [0.9, 1.0]}, r"betas=1.0: must lie in \[0, 1\)"),
    ],
)
def test_wrong_settings(wrong, message):
    with pytest.raises(ValueError, match=message):
        MuonSettings(**wrong)


def test_the_yaml_says_the_defaults():
    plain = yaml.safe_load((conf_dir() / "optim" / "muon.yaml").read_text())
    plain |= {key: float(plain[key]) for key in ("eps", "lr")}  # PyYAML reads 1e-8 as text; OmegaConf does not
    assert next(iter(plain)) == "name"
    assert MuonSettings(**plain) == MuonSettings()
    assert set(plain) == set(MuonSettings.__dataclass_fields__)
