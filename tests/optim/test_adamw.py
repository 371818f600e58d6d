"""optim=adamw: which parameters decay, in which order, and the update itself."""

import math

import pytest
import torch
import yaml
from torch import nn

from k3lab.config.registry import conf_dir
from k3lab.optim.adamw import AdamW, AdamWSettings
from k3lab.optim.groups import decayed_and_plain


class Norm(nn.Module):
    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(*shape))


class Toy(nn.Module):
    """One parameter of every kind that models here have."""

    def __init__(self, tie=False):
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.pre_norms = nn.ModuleList([Norm(8), Norm(2, 8)])
        self.query = nn.Linear(8, 8)
        self.pseudo_queries = nn.Parameter(torch.zeros(4, 8))
        self.A_log = nn.Parameter(torch.zeros(2, 1))
        self.dt_bias = nn.Parameter(torch.zeros(2, 4))
        self.key_norm_weight = nn.Parameter(torch.ones(4, 8))
        self.w_in = nn.Parameter(torch.zeros(3, 8, 8))
        self.frozen = nn.Parameter(torch.zeros(8, 8), requires_grad=False)
        self.head = nn.Linear(8, 16, bias=False)
        if tie:
            self.head.weight = self.embedding.weight


def named(model, parameters):
    names = {id(p): name for name, p in model.named_parameters()}
    return [names[id(p)] for p in parameters]


def test_matrices_decay_and_nothing_else():
    model = Toy()
    decayed, plain = decayed_and_plain(model)
    assert named(model, decayed) == ["w_in", "query.weight", "head.weight"]
    assert named(model, plain) == [
        "pseudo_queries",
        "A_log",
        "dt_bias",
        "key_norm_weight",
        "embedding.weight",
        "pre_norms.0.weight",
        "pre_norms.1.weight",
        "query.bias",
    ]


def test_a_shared_embedding_appears_once_and_does_not_decay():
    model = Toy(tie=True)
    decayed, plain = decayed_and_plain(model)
    assert "head.weight" not in named(model, decayed)
    assert named(model, plain).count("embedding.weight") == 1


def test_every_trainable_parameter_is_in_exactly_one_group():
    model = Toy()
    optimizer = AdamW.build(AdamWSettings(), model)
    ids = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert len(ids) == len(set(ids))
    assert set(ids) == {id(p) for p in model.parameters() if p.requires_grad}
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]


def test_one_update_by_hand():
    """Two steps of the published rule in float64, with and without decay."""
    model = nn.Linear(2, 1, dtype=torch.float64)
    with torch.no_grad():
        model.weight.fill_(2.0)
        model.bias.fill_(3.0)
    settings = AdamWSettings(lr=0.1, weight_decay=0.5, betas=[0.8, 0.9], eps=1e-3)
    optimizer = AdamW.build(settings, model)
    expected = {"weight": 2.0, "bias": 3.0}
    m = {"weight": 0.0, "bias": 0.0}
    v = {"weight": 0.0, "bias": 0.0}
    for step, gradient in enumerate((0.7, -0.2), start=1):
        model.weight.grad = torch.full_like(model.weight, gradient)
        model.bias.grad = torch.full_like(model.bias, gradient)
        optimizer.step()
        for name, decay in (("weight", 0.5), ("bias", 0.0)):
            m[name] = 0.8 * m[name] + 0.2 * gradient
            v[name] = 0.9 * v[name] + 0.1 * gradient**2
            update = m[name] / (1 - 0.8**step) / (math.sqrt(v[name] / (1 - 0.9**step)) + 1e-3)
            expected[name] = expected[name] * (1 - 0.1 * decay) - 0.1 * update
    assert model.weight.flatten().tolist() == pytest.approx([expected["weight"]] * 2, rel=1e-12)
    assert model.bias.item() == pytest.approx(expected["bias"], rel=1e-12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_fused_on_cuda():
    assert AdamW.build(AdamWSettings(), Toy().cuda()).param_groups[0]["fused"] is True


def test_not_fused_on_cpu():
    assert not AdamW.build(AdamWSettings(), Toy()).param_groups[0]["fused"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lr": 0.0}, "lr=0.0: must be positive"),
        ({"lr": float("nan")}, "lr=nan: must be a number"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1: must be zero or more"),
        ({"eps": 0.0}, "eps=0.0: must be positive"),
        ({"betas": [0.9]}, r"betas=\[0.9\]: must be two numbers"),
        ({"betas": [0.9, 1.0]}, r"betas=1.0: must lie in \[0, 1\)"),
    ],
)
def test_wrong_settings(wrong, message):
    with pytest.raises(ValueError, match=message):
        AdamWSettings(**wrong)


def test_the_yaml_says_the_defaults():
    plain = yaml.safe_load((conf_dir() / "optim" / "adamw.yaml").read_text())
    plain["eps"] = float(plain["eps"])  # PyYAML reads 1e-8 as text; OmegaConf does not
    plain["lr"] = float(plain["lr"])
    assert next(iter(plain)) == "name"
    assert AdamWSettings(**plain) == AdamWSettings()
