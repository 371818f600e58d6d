"""State as JSON and named tensors: everything comes back as it was, nothing else gets in."""

from __future__ import annotations

import json
import math
import random

import numpy as np
import pytest
import torch

from k3lab.training.packing import pack, pack_unique, rng_state, set_rng_state, unpack


def test_trees_survive_json() -> None:
    tree = {
        "state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(2, 3)}, 1: {}},
        "param_groups": [{"lr": 0.1 + 0.2, "betas": (0.9, 0.95), "fused": None, "amsgrad": False}],
        "odd": {"$tensor": "not one", "inf": -math.inf, "deep": [[], {}, ()]},
        (1, "a"): "tuple key",
    }
    spec, tensors = pack(tree)
    back = unpack(json.loads(json.dumps(spec, allow_nan=False)), tensors)
    torch.testing.assert_close(back["state"][0].pop("exp_avg"), tree["state"][0].pop("exp_avg"), rtol=0, atol=0)
    assert back["state"][0].pop("step") == tree["state"][0].pop("step")
    assert back == tree
    assert isinstance(back["param_groups"][0]["betas"], tuple)


def test_nan_survives() -> None:
    spec, _ = pack({"loss": math.nan})
    assert math.isnan(unpack(json.loads(json.dumps(spec, allow_nan=False)), {})["loss"])


def test_other_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="state/hook is a function"):
        pack({"state": {"hook": lambda: None}})


def test_a_packed_tensor_is_a_copy() -> None:
    weight = torch.zeros(3)
    _, tensors = pack({"w": weight})
    weight += 1
    assert tensors["w"].sum() == 0


def test_tied_weights_are_stored_once() -> None:
    weight = torch.randn(4, 2)
    unique, aliases = pack_unique({"embedding": weight, "head": weight, "view": weight[:2], "empty": weight[:0]})
    assert aliases == {"head": "embedding"}
    assert set(unique) == {"embedding", "view", "empty"}


def test_random_generators_continue() -> None:
    torch.randn(3), random.random(), np.random.rand(3)
    np.random.randn()  # leaves a cached normal behind
    spec, tensors = pack(rng_state())
    first = torch.randn(5), random.random(), np.random.randn(3)
    set_rng_state(unpack(json.loads(json.dumps(spec)), tensors))
    second = torch.randn(5), random.random(), np.random.randn(3)
    assert torch.equal(first[0], second[0])
    assert first[1] == second[1]
    assert (first[2] == second[2]).all()
