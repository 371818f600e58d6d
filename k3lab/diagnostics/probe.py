"""One look inside a model: a forward and backward pass on a few sequences that leaves no trace.

The model runs in evaluation mode and eagerly, on its own embedding. Hooks note what each sublayer returns;
the residual topology, a pure function of these outputs, is then run again to see what each sublayer read.
Gradients are asked for at the sublayer outputs only, so no parameter's ``.grad`` is written. Nothing draws
random numbers, routers count nothing, and every module's training flag is put back.

B batch, T time, N real tokens of the probe, D hidden size, L sublayers, S sources of one mix, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Record:
    """What a probe saw; padding is left out."""

    mixtures: list[Tensor] = field(default_factory=list)  # h [N,D] × (L + 1), before the norms; last: output
    outputs: list[Tensor] = field(default_factory=list)  # f [N,D] × L
    grads: list[Tensor] = field(default_factory=list)  # ∂(Σ loss)/∂f [N,D] × L
    weights: list[Tensor | None] = field(default_factory=list)  # source weights [S,N] × (L + 1)
    log_decays: dict[int, tuple[Tensor, float | None]] = field(default_factory=dict)  # layer → g [M,H,K], bound
    counts: dict[int, Tensor] = field(default_factory=dict)  # layer → tokens an expert [E]
    sample: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))  # M of the N tokens


class _Taps:
    """Hooks that keep a forward pass's embedding, sublayer outputs, decay logits and routings."""

    def __init__(self, model: Any) -> None:
        self.embedding: Tensor | None = None
        self.outputs: dict[int, Tensor] = {}
        self.logits: dict[int, Tensor] = {}
        self.counts: dict[int, Tensor] = {}
        self.handles = [model.embedding.register_forward_hook(self._on_embedding)]
        for index, layer in enumerate(model.layers):
            self._hook(layer.mixer, self._on_mixer, index)
            self._hook(layer.ffn, self._on_ffn, index)
            if has_decay(layer.mixer):
                self._hook(layer.mixer.decay_logit, self._on_logit, index)

    def _hook(self, module: nn.Module, tap: Callable[[int, Any], None], index: int) -> None:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            tap(index, output)

        self.handles.append(module.register_forward_hook(hook))

    def _on_embedding(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        # A leaf: the backward pass ends here, and reaches here even when parameters are frozen.
        self.embedding = output.detach().requires_grad_(True)
        return self.embedding

    def _on_mixer(self, index: int, output: Tensor) -> None:
        self.outputs[2 * index] = output

    def _on_ffn(self, index: int, output: tuple[Tensor, Any]) -> None:
        self.outputs[2 * index + 1], routing = output
        if routing is not None:
            self.counts[index] = routing.counts_E.detach()

    def _on_logit(self, index: int, output: Tensor) -> None:
        self.logits[index] = output.detach()

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()


def has_decay(mixer: Any) -> bool:
    """Whether a mixer has a decay that is computed from logits."""
    decay = getattr(mixer, "decay", None)
    return getattr(mixer, "decay_logit", None) is not None and getattr(decay, "channels", 0) > 0


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every submodule's training flag is what it was."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, flag in training.items():
            module.training = flag


def probe(
    model: Any,
    batch: dict[str, Tensor],
    sequences: int = 1,
    sample_tokens: int = 128,
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Record:
    """Look at the language model ``model`` on the first ``sequences`` of ``batch``.

    ``batch`` has tokens and targets [B,T] int64 (−100: no loss) and maybe a mask [B,T] bool of real tokens and
    the ``documents`` [B,T] of packed sequences.
    ``precision`` opens the autocast region that training uses.
    """
    tokens_BT, targets_BT = batch["tokens"][:sequences], batch["targets"][:sequences]
    mask_BT, documents_BT = (batch[k][:sequences] if batch.get(k) is not None else None for k in ("mask", "documents"))
    with untouched(model), torch.compiler.set_stance("force_eager"):
        taps = _Taps(model)
        try:
            with torch.enable_grad(), precision():
                logits_BTV = model.forward(tokens_BT, mask_BT, documents_BT=documents_BT).logits_BTV
                loss = F.cross_entropy(
                    logits_BTV.float().flatten(0, 1), targets_BT.flatten(), ignore_index=-100, reduction="sum"
                )
        finally:
            taps.remove()  # before the backward pass, which may run a checkpointed layer again
        outputs = [taps.outputs[i] for i in range(len(taps.outputs))]
        grads = torch.autograd.grad(loss, outputs, allow_unused=True, materialize_grads=True)
        with torch.no_grad(), precision():
            return _record(model, taps, outputs, list(grads), mask_BT, sample_tokens)


def _record(
    model: Any,
    taps: _Taps,
    outputs: list[Tensor],
    grads: list[Tensor],
    mask_BT: Tensor | None,
    sample_tokens: int,
) -> Record:
    assert taps.embedding is not None
    real = slice(None) if mask_BT is None else mask_BT.flatten().nonzero().squeeze(1)

    def flat(x_BTD: Tensor) -> Tensor:
        return x_BTD.detach().flatten(0, 1)[real]

    residual, record = model.residual, Record(counts=taps.counts)
    stream = residual.start(taps.embedding.detach())
    for i in range(len(outputs) + 1):
        record.mixtures.append(flat(residual.mixture(stream, i)))
        weights_SBT = residual.source_weights(stream, i)
        record.weights.append(None if weights_SBT is None else weights_SBT.flatten(1)[:, real])
        if i < len(outputs):
            stream = residual.write(stream, i, outputs[i].detach())
    record.outputs, record.grads = [flat(f) for f in outputs], [flat(g) for g in grads]
    tokens = len(record.mixtures[0])
    count = min(sample_tokens, tokens)
    record.sample = torch.arange(count, device=record.mixtures[0].device) * tokens // max(count, 1)
    for index, z in taps.logits.items():
        decay = model.layers[index].mixer.decay
        z_MHC = flat(z)[record.sample].reshape(count, -1, decay.channels)
        record.log_decays[index] = (decay.log_decay(z_MHC[None])[0], decay.bound)
    return record
