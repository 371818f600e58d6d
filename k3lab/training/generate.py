"""Text from a run's newest checkpoint, one token at a time from the model's decoding caches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from k3lab.config.errors import UserError
from k3lab.training.evaluate import load_model
from k3lab.training.machine import prepare_source


def generate(
    config: Any,
    folder: Path,
    prompt: str,
    max_new_tokens: int = 200,
    seed: int = 0,
    temperature: float = 1.0,
    top_k: int = 0,
) -> str:
    """Return the prompt and its continuation; the same seed gives the same text.

    ``temperature`` 0 takes the likeliest token each time; ``top_k`` 0 draws from all tokens.
    """
    source = prepare_source(config)
    ids = source.encode(prompt)
    if not ids:
        raise UserError("prompt= is empty: must hold at least one character")
    model, _ = load_model(config, folder, source)
    device = model.embedding.weight.device
    generator = torch.Generator(device).manual_seed(seed)
    caches = model.new_caches(1)
    new = torch.tensor([ids], device=device)
    with torch.inference_mode():
        for _ in range(max_new_tokens):
            logits_V = model(new, caches=caches).logits_BTV[0, -1]
            new = draw(logits_V[: source.vocab_size], temperature, top_k, generator).view(1, 1)
            ids.append(int(new))
    return source.decode(ids)


def draw(logits_V: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> Tensor:
    """Return one token id drawn from logits, int64 scalar; equal logits rank by the lower id."""
    if temperature == 0:
        return logits_V.argmax()
    logits_V = logits_V.float() / temperature
    if 0 < top_k < logits_V.numel():
        order_V = torch.sort(logits_V, descending=True, stable=True).indices
        logits_V = logits_V.index_fill(0, order_V[top_k:], -torch.inf)
    return torch.multinomial(torch.softmax(logits_V, -1), 1, generator=generator)[0]
