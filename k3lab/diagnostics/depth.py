"""diagnostics=depth: what each sublayer of a checkpoint is worth, and how representations turn along the depth.

On held-out data, for L sublayers whose outputs are f_i and whose inputs before the norm are h_i (h_L: the
output's):

- ``ablation_loss`` loss with f_i := 0, less the loss: what the sublayer is worth, in nats a token;
- ``lens_loss`` loss of the head behind the final norm on h_i, a *mixture* where the topology mixes sources, and
  ``lens_agreement``, how often it agrees with the model's first guess;
- linear CKA of every two h, and ``cka_next`` of each with the one above;
- the metrics of `k3lab.diagnostics.depth_metrics` and the attention to sources, over all of the data.

R sequences, N tokens, M sampled tokens, D hidden size, S sources.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from k3lab.config.checks import in_range, positive
from k3lab.config.errors import UserError
from k3lab.diagnostics.depth_metrics import (
    ROOT_MEAN_SQUARES,
    by_sublayer,
    depth_table,
    effective_rank,
    linear_cka,
    source_metrics,
)
from k3lab.diagnostics.probe import Record, probe, untouched
from k3lab.diagnostics.study import NO_TARGET, Batch, Study, Subject, forward, kind, pieces, real_tokens, row_losses
from k3lab.tracking import names


@dataclass(frozen=True)
class DepthSettings:
    """How much data a checkpoint's depth is studied on."""

    name: str = "depth"
    batches: int = 4  # validation batches to look at
    sequences: int = 4  # sequences in memory at a time
    sample_tokens: int = 1024  # tokens for effective rank and CKA, which wants more than hidden_size

    on_schedule = False  # no key: this is for k3lab eval

    def __post_init__(self) -> None:
        positive("batches", self.batches)
        positive("sequences", self.sequences)
        in_range("sample_tokens", self.sample_tokens, 2, 1 << 16)


class Depth(Study):
    """L + 1 forward passes and one backward pass over the data."""

    def measure(self, subject: Subject) -> tuple[dict[str, float], dict[str, Any], Callable[[Path], None]]:
        """See `Study.measure`."""
        parts = [piece for _, piece in pieces(subject.batches, self.settings.sequences)]
        if not parts:
            raise UserError("diagnostics=depth: there is no held-out sequence to look at")
        model, sublayers = subject.model, 2 * len(subject.model.layers)
        kinds = [kind(model, i) for i in range(sublayers)]
        losses_XR, targets_R = ablate(model, parts, subject.precision)
        change_L, error_L = paired_change(losses_XR, targets_R)

        sums = Sums()
        sample = max(1, math.ceil(self.settings.sample_tokens / len(parts)))
        for piece in parts:
            record = probe(model, piece, len(piece["tokens"]), sample, subject.precision)
            sums.add(record, piece, model, subject.precision)
        lens_loss, lens_agreement = sums.lens()
        samples_LMD = sums.samples(self.settings.sample_tokens)
        cka_LL = linear_cka(samples_LMD)

        metrics = {names.VAL_LOSS: float(losses_XR[0].sum() / targets_R.sum())}
        metrics |= by_sublayer(
            {
                names.DEPTH_ABLATION_LOSS: change_L,
                names.DEPTH_CKA_NEXT: cka_LL.diagonal(1),
                names.DEPTH_EFFECTIVE_RANK: effective_rank(samples_LMD[:-1]),
            }
        )
        for i, (loss, agreement) in enumerate(zip(lens_loss, lens_agreement, strict=True)):
            index = i if i < sublayers else None
            metrics[names.depth(names.DEPTH_LENS_LOSS, index)] = loss
            metrics[names.depth(names.DEPTH_LENS_AGREEMENT, index)] = agreement
        means = sums.means()
        weights = {n: v for n, v in means.items() if n.startswith(names.DEPTH_SOURCE_WEIGHT)}
        metrics |= {n: v for n, v in means.items() if n not in weights}
        data = {
            "sequences": len(targets_R),
            "targets": int(targets_R.sum()),
            "sublayers": kinds,
            "ablation_standard_error": error_L.tolist(),
            "linear_cka": cka_LL.tolist(),
            "source_weights": weights,
        }

        def draw(folder: Path) -> None:
            from k3lab.diagnostics.figures.study_depth import draw_all  # imports matplotlib

            draw_all(folder, metrics, data)

        return metrics, data, draw


class Sums:
    """Adds up what probes of single pieces give, weighted by their tokens."""

    def __init__(self) -> None:
        self._totals: dict[str, float] = defaultdict(float)
        self._tokens = 0
        self._lens: list[Tensor] = []  # [2,L+1] a piece: loss, agreements
        self._targets = 0
        self._samples: list[Tensor] = []

    def add(self, record: Record, piece: Batch, model: Any, precision: Callable[[], Any]) -> None:
        """Take one piece's probe."""
        found = by_sublayer(depth_table(record.mixtures, record.outputs, record.grads))
        found |= source_metrics(record.weights, 1 << 20)
        tokens = len(record.mixtures[0])
        for name, value in found.items():
            self._totals[name] += tokens * (value**2 if name.startswith(ROOT_MEAN_SQUARES) else value)
        self._tokens += tokens
        self._samples.append(torch.stack([h[record.sample].float().cpu() for h in record.mixtures]))
        targets_N = piece["targets"].flatten()[real_tokens(piece)]
        self._lens.append(lens(model, record.mixtures, targets_N, precision))
        self._targets += int((targets_N != NO_TARGET).sum())

    def means(self) -> dict[str, float]:
        """The metrics over all pieces."""
        means = {name: total / self._tokens for name, total in self._totals.items()}
        return {n: math.sqrt(v) if n.startswith(ROOT_MEAN_SQUARES) else v for n, v in means.items()}

    def lens(self) -> tuple[list[float], list[float]]:
        """Loss and agreement at each depth, the output last."""
        loss, agreement = (torch.stack(self._lens).sum(0) / max(self._targets, 1)).tolist()
        return loss, agreement

    def samples(self, most: int) -> Tensor:
        """The sampled h, [L+1,M,D]."""
        return torch.cat(self._samples, 1)[:, :most]


@torch.no_grad()
def ablate(model: Any, parts: list[Batch], precision: Callable[[], Any]) -> tuple[Tensor, Tensor]:
    """The loss of each sequence, first of the whole model, then without each sublayer: [L+1,R], and targets [R]."""
    losses: list[Tensor] = []
    with untouched(model):
        for piece in parts:
            rows = []
            for sublayer in [None, *range(2 * len(model.layers))]:
                with silenced(model, sublayer), precision():
                    rows.append(row_losses(forward(model, piece).logits_BTV, piece["targets"]))
            losses.append(torch.stack(rows).cpu())
    targets_R = torch.cat([(piece["targets"] != NO_TARGET).sum(1) for piece in parts]).cpu()
    return torch.cat(losses, 1), targets_R


@contextmanager
def silenced(model: Any, sublayer: int | None) -> Iterator[None]:
    """Inside, the output of one sublayer is zero (None: of no sublayer)."""
    if sublayer is None:
        yield
        return
    layer = model.layers[sublayer // 2]

    def hook(module: Any, inputs: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (torch.zeros_like(output[0]), *output[1:])
        return torch.zeros_like(output)

    handle = (layer.mixer if sublayer % 2 == 0 else layer.ffn).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def paired_change(losses_XR: Tensor, targets_R: Tensor) -> tuple[Tensor, Tensor]:
    """The change of the loss a token from the first row to each other one, and its standard error over sequences.

    Both losses of a sequence share its difficulty, which therefore does not enter. NaN for a single sequence.
    """
    gap_LR, total, R = losses_XR[1:] - losses_XR[0], targets_R.sum(), len(targets_R)
    change_L = gap_LR.sum(1) / total
    rest_LR = gap_LR - change_L[:, None] * targets_R
    error_L = (rest_LR.square().sum(1) * (R / (R - 1) if R > 1 else math.nan)).sqrt() / total
    return change_L, error_L


@torch.no_grad()
def lens(model: Any, mixtures: list[Tensor], targets_N: Tensor, precision: Callable[[], Any]) -> Tensor:
    """Summed loss, and agreements with the output's first guess, of the head on each h [N,D]: [2,L+1] fp64."""
    norm, real_N = model.residual.norm(model.residual.sublayers), targets_N != NO_TARGET
    guess_N, columns = None, []
    for h_ND in reversed(mixtures):
        with precision():
            logits_NV = model.head(norm(h_ND)).float()
        first_N = logits_NV.argmax(-1)
        guess_N = first_N if guess_N is None else guess_N
        loss = row_losses(logits_NV[None], targets_N[None])[0]
        columns.append(torch.stack([loss, ((first_N == guess_N) & real_N).sum().double()]))
    return torch.stack(columns[::-1], 1).cpu()
