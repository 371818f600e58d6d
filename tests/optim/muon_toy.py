"""A model with a parameter of every kind, and a plain float64 oracle of the Muon optimizer."""

import math

import torch
from torch import nn

from k3lab.optim.muon import MuonSettings

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
