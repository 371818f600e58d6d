"""Which parameters decay: matrices that map activations, and nothing else."""

from __future__ import annotations

from torch import nn

# A vector may be stored as a matrix (one row a head, a layer or a sublayer); its name says what it is.
_VECTORS = ("bias", "a_log", "query", "queries", "norm", "scale", "gain")


def decayed_and_plain(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Trainable parameters with and without weight decay, each once, in the model's order.

    No decay: vectors and scalars, embeddings (also when the head shares them), norms, biases, decay
    rates and pseudo-queries.
    """
    embeddings = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            vector = id(parameter) in embeddings or _is_vector(name, parameter)
            (plain if vector else decayed).append(parameter)
    return decayed, plain


def _is_vector(name: str, parameter: nn.Parameter) -> bool:
    # A linear map may be *called* query; so only the parameter's own name counts, not its module's,
    # except for norms, whose parameter is a "weight" like any other.
    *modules, own = name.lower().split(".")
    return parameter.ndim < 2 or any(part in own for part in _VECTORS) or any("norm" in module for module in modules)
