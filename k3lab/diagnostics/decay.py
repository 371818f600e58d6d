"""diagnostics=decay: how fast each channel of a checkpoint forgets, where it is stuck, and on which tokens.

On held-out data, for each recurrent layer: the spectrum of half-lives ln 2/|g| over tokens and channels, by
head and by class of token; for every channel its half-life and the share of tokens at which it is dead
(|g| < 1e-6) or at the bound; the channels that are so at practically every token.

N tokens, H heads, K channels a head, C classes of tokens, B bins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from k3lab.config.checks import positive
from k3lab.config.errors import UserError
from k3lab.decay.base import DEAD
from k3lab.diagnostics.decay_metrics import AT_BOUND, QUANTILES, half_life
from k3lab.diagnostics.probe import has_decay, untouched
from k3lab.diagnostics.study import Study, Subject, forward, pieces, real_tokens
from k3lab.diagnostics.tokens import classify
from k3lab.tracking import names

ALWAYS = 0.99  # share of tokens from which a channel counts as always dead or always at the bound
LOW, HIGH, A_DECADE = -2.0, 6.0, 50  # bins of the half-life: powers of ten, and bins a power
BINS = round((HIGH - LOW) * A_DECADE)


@dataclass(frozen=True)
class DecaySettings:
    """How much data a checkpoint's forgetting is studied on."""

    name: str = "decay"
    batches: int = 8  # validation batches to look at
    sequences: int = 4  # sequences in memory at a time

    on_schedule = False  # no key: this is for k3lab eval

    def __post_init__(self) -> None:
        positive("batches", self.batches)
        positive("sequences", self.sequences)


@dataclass
class Forgetting:
    """One layer's log-decays, added up."""

    bound: float | None
    tokens: int
    by_head_HB: Tensor  # histograms of the half-life over tokens and channels
    by_class_CB: Tensor
    log_sum_HK: Tensor  # Σ ln(half-life)
    dead_HK: Tensor  # tokens at which a channel is dead
    at_bound_HK: Tensor  # tokens at which it is at the bound

    def __iadd__(self, other: Forgetting) -> Forgetting:
        self.tokens += other.tokens
        for name in ("by_head_HB", "by_class_CB", "log_sum_HK", "dead_HK", "at_bound_HK"):
            getattr(self, name).add_(getattr(other, name))
        return self


class Decay(Study):
    """One forward pass over the data."""

    def measure(self, subject: Subject) -> tuple[dict[str, float], dict[str, Any], Callable[[Path], None]]:
        """See `Study.measure`."""
        layers = [i for i, layer in enumerate(subject.model.layers) if has_decay(layer.mixer)]
        if not layers:
            raise UserError("diagnostics=decay: no layer of this model has a decay that is computed from its input")
        classes = classify(subject.vocab_size, subject.decode)
        found: dict[int, Forgetting] = {}
        length = 0
        with torch.no_grad(), untouched(subject.model), decay_logits(subject.model, layers) as logits:
            for _, piece in pieces(subject.batches, self.settings.sequences):
                with subject.precision():
                    forward(subject.model, piece)
                real, length = real_tokens(piece), max(length, piece["tokens"].shape[1])
                tokens_N = piece["tokens"].flatten()[real]
                class_N = classes.of_token_V.to(tokens_N.device)[tokens_N]
                for i in layers:
                    rule = subject.model.layers[i].mixer.decay
                    z_NHC = logits[i].flatten(0, 1)[real].reshape(len(tokens_N), -1, rule.channels)
                    one = add_up(rule.log_decay(z_NHC[None])[0], rule.bound, class_N, len(classes.labels))
                    if i in found:
                        found[i] += one
                    else:
                        found[i] = one
        if not found:
            raise UserError("diagnostics=decay: there is no held-out sequence to look at")
        metrics = all_metrics(found)
        data = {
            "tokens": found[layers[0]].tokens,
            "sequence": length,
            "classes": classes.labels,
            "layers": {
                str(i): {
                    "bound": f.bound,
                    "half_life": float(quantiles(f.by_head_HB.sum(0), 0.5)),
                    "half_life_by_head": quantiles(f.by_head_HB, 0.5).tolist(),
                    "half_life_by_class": quantiles(f.by_class_CB, 0.5).tolist(),
                    "half_life_by_channel": (f.log_sum_HK / f.tokens).exp().tolist(),
                    "dead_share_by_channel": (f.dead_HK / f.tokens).tolist(),
                    "at_bound_share_by_channel": (f.at_bound_HK / f.tokens).tolist() if f.bound is not None else None,
                }
                for i, f in found.items()
            },
        }

        def draw(folder: Path) -> None:
            from k3lab.diagnostics.figures.study_decay import draw_all  # imports matplotlib

            draw_all(folder, data, found)

        return metrics, data, draw


@contextmanager
def decay_logits(model: Any, layers: list[int]) -> Iterator[dict[int, Tensor]]:
    """Inside, the dict yielded holds each layer's last decay logits, [B,T,H,C] or flattened after T."""
    logits: dict[int, Tensor] = {}

    def hook(index: int) -> Any:
        def keep(module: Any, inputs: Any, output: Tensor) -> None:
            logits[index] = output

        return keep

    handles = [model.layers[i].mixer.decay_logit.register_forward_hook(hook(i)) for i in layers]
    try:
        yield logits
    finally:
        for handle in handles:
            handle.remove()


def add_up(g_NHK: Tensor, bound: float | None, class_N: Tensor, classes: int) -> Forgetting:
    """The sums of log-decays g of N tokens, on the CPU."""
    N, H, _ = g_NHK.shape
    rate_NHK = g_NHK.abs()
    life_NHK = half_life(rate_NHK)
    bin_NHK = ((life_NHK.log10() - LOW) * A_DECADE).long().clamp(0, BINS - 1)
    head_H = torch.arange(H, device=g_NHK.device)[:, None]
    by_head = torch.bincount((head_H * BINS + bin_NHK).flatten(), minlength=H * BINS)
    by_class = torch.bincount((class_N[:, None, None] * BINS + bin_NHK).flatten(), minlength=classes * BINS)
    at_bound_NHK = g_NHK <= AT_BOUND * bound if bound is not None else torch.zeros_like(g_NHK, dtype=torch.bool)
    return Forgetting(
        bound,
        N,
        by_head.view(H, BINS).cpu(),
        by_class.view(classes, BINS).cpu(),
        life_NHK.log().double().sum(0).cpu(),
        (rate_NHK < DEAD).sum(0).cpu(),
        at_bound_NHK.sum(0).cpu(),
    )


def quantiles(counts_XB: Tensor, level: float) -> Tensor:
    """The half-life below which a share ``level`` of each histogram lies: [X], NaN for an empty histogram.

    Linear inside the bin where the count is reached, on the logarithmic scale: the error is below 1/50 of a
    power of ten.
    """
    counts_XB = counts_XB.double()
    cumulative_XB = counts_XB.cumsum(-1)
    total_X1 = cumulative_XB[..., -1:]
    bin_X1 = (cumulative_XB < level * total_X1).sum(-1, keepdim=True).clamp(max=BINS - 1)
    inside_X1 = counts_XB.gather(-1, bin_X1)
    rest_X1 = level * total_X1 - (cumulative_XB.gather(-1, bin_X1) - inside_X1)
    life_X1 = 10 ** (LOW + (bin_X1 + rest_X1 / inside_X1.clamp_min(1)) / A_DECADE)
    return life_X1.masked_fill(total_X1 == 0, math.nan)[..., 0]


def all_metrics(found: dict[int, Forgetting]) -> dict[str, float]:
    """The metrics of every layer and, first, of all together."""
    groups: dict[int | None, list[Forgetting]] = {None: list(found.values())} | {i: [f] for i, f in found.items()}
    metrics: dict[str, float] = {}
    for index, group in groups.items():
        spectrum_B = torch.stack([f.by_head_HB.sum(0) for f in group]).sum(0)
        values = {name: float(quantiles(spectrum_B, level)) for level, name in QUANTILES.items()}
        dead = torch.cat([(f.dead_HK / f.tokens).flatten() for f in group]).double()
        values[names.DECAY_DEAD_FRACTION] = float(dead.mean())
        values[names.DECAY_ALWAYS_DEAD_FRACTION] = float((dead >= ALWAYS).double().mean())
        bounded = [(f.at_bound_HK / f.tokens).flatten() for f in group if f.bound is not None]
        if bounded:
            at_bound = torch.cat(bounded).double()
            values[names.DECAY_AT_BOUND_FRACTION] = float(at_bound.mean())
            values[names.DECAY_ALWAYS_AT_BOUND_FRACTION] = float((at_bound >= ALWAYS).double().mean())
        metrics |= {name if index is None else names.layer(name, index): v for name, v in values.items()}
    return metrics
