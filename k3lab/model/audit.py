"""What a model costs: parameters by part, FLOPs a token, decoding memory; counted by the components themselves."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from k3lab.config.errors import UserError
from k3lab.model.build import build_model
from k3lab.model.language_model import LanguageModel


def audit(model: LanguageModel, seq_len: int) -> dict[str, Any]:
    """Return the costs of a model, which may live on the meta device.

    total_params, and by_part whose values add up to it; active_params: those that one token meets, without the
    input embedding (a look-up) unless the head shares it, and active_by_part; flops_per_token: of the forward
    pass, averaged over a sequence of seq_len tokens, norms and residual mixes left out; state_bytes: decoding
    state a sequence of any length; kv_bytes_per_token: bf16 cache added by each token.
    """
    total: dict[str, int] = defaultdict(int)
    active: dict[str, int] = defaultdict(int)
    total["embedding"] = count(model.embedding)
    active["embedding"] = count(model.embedding) if count(model.head) == 0 else 0
    flops = 2 * model.embedding.weight.numel()  # the head has the embedding's shape
    state = cache = 0
    for layer in model.decoder_layers:
        mixer, ffn = layer.mixer, layer.ffn
        routing = count(ffn.router) if ffn.router is not None else 0
        part = f"mixer.{mixer.settings.name}"
        total[part] += count(mixer)
        active[part] += count(mixer)
        if ffn.router is not None:
            part = f"router.{ffn.router.settings.name}"
            total[part] += routing
            active[part] += routing
        part = f"ffn.{ffn.settings.name}"
        total[part] += count(ffn) - routing
        active[part] += ffn.parameters_active() - routing
        flops += mixer.flops_per_token(seq_len) + ffn.flops_per_token()
        state += mixer.state_bytes()
        cache += mixer.kv_bytes_per_token()
    for part, module in ((f"residual.{model.residual.settings.name}", model.residual), ("head", model.head)):
        total[part] += count(module)
        active[part] += count(module)
    assert sum(total.values()) == count(model), "a parameter belongs to no part"
    return {
        "total_params": sum(total.values()),
        "active_params": sum(active.values()),
        "by_part": dict(total),
        "active_by_part": dict(active),
        "state_bytes": state,
        "kv_bytes_per_token": cache,
        "flops_per_token": flops,
        "seq_len": seq_len,
    }


def audit_config(config: Any) -> dict[str, Any]:
    """Return the costs of a configuration's model, built without allocating any weight.

    Where neither the model nor the data says how many token ids there are, they are bytes.
    """
    vocab_size = config.model.vocab_size or getattr(config.data, "vocab_size", None) or 256
    return audit(meta_model(config, vocab_size), config.data.seq_len)


def meta_model(config: Any, vocab_size: int) -> LanguageModel:
    """Return the model of ``config`` without weights; raises UserError if it is too large to have any."""
    try:
        with torch.device("meta"):
            return build_model(config, vocab_size)
    except (RuntimeError, OverflowError) as error:  # sizes beyond 64 bits; others the settings have refused
        raise UserError(
            f"model={config.model.name}: its tensors are too large: {str(error).splitlines()[0]}"
        ) from error


def print_audit(result: dict[str, Any]) -> None:
    """Print an audit as two tables."""
    parts = Table("part", "parameters", "active a token", title="Parameters")
    for column in parts.columns[1:]:
        column.justify = "right"
    for part, number in result["by_part"].items():
        parts.add_row(part, f"{number:,}", f"{result['active_by_part'][part]:,}")
    parts.add_section()
    parts.add_row("all (active: without the input embedding)", *_pair(result, "total_params", "active_params"))
    costs = Table("cost", "value", title="Costs")
    costs.columns[1].justify = "right"
    costs.add_row(f"forward FLOPs a token at {result['seq_len']} tokens", f"{result['flops_per_token']:,}")
    costs.add_row("decoding state a sequence, bytes", f"{result['state_bytes']:,}")
    costs.add_row("decoding cache a token (bf16), bytes", f"{result['kv_bytes_per_token']:,}")
    console = Console()
    console.print(parts)
    console.print(costs)


def count(module: nn.Module) -> int:
    """Parameters of a module, each once."""
    return sum(p.numel() for p in module.parameters())


def _pair(result: dict[str, Any], *keys: str) -> list[str]:
    return [f"{result[key]:,}" for key in keys]
