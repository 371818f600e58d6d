"""State without pickle: a tree of dicts, lists and numbers as JSON, its tensors by name for safetensors.

What JSON cannot hold is written as a dict with one key that starts with ``$``: a tensor by its name in the
tensor file, a tuple, a dict whose keys are not all plain text, a float that is not finite.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def pack(tree: Any) -> tuple[Any, dict[str, Tensor]]:
    """Return ``tree`` as JSON values and its tensors by path; raises TypeError for any other kind of object."""
    tensors: dict[str, Tensor] = {}
    return _pack(tree, "", tensors), tensors


def unpack(spec: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the tree that ``pack`` took; raises KeyError if a tensor is missing."""
    if isinstance(spec, list):
        return [unpack(v, tensors) for v in spec]
    if not isinstance(spec, dict):
        return spec
    if len(spec) == 1:
        ((kind, value),) = spec.items()
        if kind == "$tensor":
            return tensors[value]
        if kind == "$tuple":
            return tuple(unpack(v, tensors) for v in value)
        if kind == "$items":
            return {unpack(k, tensors): unpack(v, tensors) for k, v in value}
        if kind == "$float":
            return float(value)
    return {k: unpack(v, tensors) for k, v in spec.items()}


def _pack(tree: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, Tensor):
        assert path not in tensors
        tensors[path] = tree.detach().to("cpu", copy=True).contiguous()
        return {"$tensor": path}
    if isinstance(tree, dict):
        if all(isinstance(k, str) and not k.startswith("$") for k in tree):
            return {k: _pack(v, _join(path, k), tensors) for k, v in tree.items()}
        items = enumerate(tree.items())
        return {"$items": [[_pack(k, "", tensors), _pack(v, _join(path, n), tensors)] for n, (k, v) in items]}
    if isinstance(tree, (list, tuple)):
        values = [_pack(v, _join(path, n), tensors) for n, v in enumerate(tree)]
        return {"$tuple": values} if isinstance(tree, tuple) else values
    if isinstance(tree, float) and not math.isfinite(tree):
        return {"$float": repr(tree)}
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    raise TypeError(f"{path or 'the state'} is a {type(tree).__name__}, which a checkpoint cannot hold")


def _join(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)


def pack_unique(named: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors on the CPU, each once, and ``{name: name of the same tensor}`` for the others.

    Tied weights appear under several names in a state dict, which a safetensors file refuses.
    """
    unique: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    for name, tensor in named.items():
        key = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and key in seen:
            aliases[name] = seen[key]
            continue
        seen[key] = name
        unique[name] = tensor.detach().to("cpu", copy=True).contiguous()
    return unique, aliases


def rng_state() -> dict[str, Any]:
    """Return the state of every global random generator: torch on all devices, Python and numpy."""
    import random

    import numpy as np

    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": random.getstate(),
        "numpy": [str(kind), [int(k) for k in keys], int(position), int(has_gauss), float(cached)],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Put every global random generator back; states of GPUs that are not here are left out."""
    import random

    import numpy as np

    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available():
        for index, cuda_state in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(cuda_state, index)
    random.setstate(state["python"])
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
