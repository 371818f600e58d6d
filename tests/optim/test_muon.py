"""optim=muon: against a plain float64 oracle; heads, experts, resume, and one step counted once."""

import pytest
import torch
import yaml
from torch import nn

from k3lab.config.load import load
from k3lab.config.registry import conf_dir
from k3lab.model.build import build_model
from k3lab.optim import muon_adamw
from k3lab.optim.matrices import Stack, divide
from k3lab.optim.muon import Muon, MuonSettings
from k3lab.optim.muon_adamw import orthogonalise
from tests.optim.muon_toy import MATRICES, SETTINGS, give_gradients, oracle, toy


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
