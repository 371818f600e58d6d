"""diagnostics=routing: which tokens a checkpoint sends to which experts, and which experts go together.

On held-out data, for each routed layer with counts n_i of the tokens sent to expert i and n_ij of those sent to
both i and j:

- ``coactivation`` the share of an expert's tokens that also go to the partner it meets most often, Σ_i n_i
  max_j n_ij/n_i / Σ n_i, beside ``coactivation_chance`` (k − 1)/(E − 1);
- ``specialisation`` I(class; expert) / H(expert), how much of the choice of expert the class of the token
  explains: 0 nothing, 1 all; with Miller and Madow's correction, or chance alone would look like a little; and
  ``token_specialisation``, the same for the token itself where the vocabulary is small;
- the ``balance/`` metrics of the whole data, and drop rates at capacity factors, batch by batch.

N tokens, k experts a token, E experts, C classes of tokens, V vocabulary, L routed layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from k3lab.config.checks import positive
from k3lab.config.errors import UserError
from k3lab.diagnostics.balance_metrics import LoadBalance, drop_rates, routed_layers
from k3lab.diagnostics.probe import untouched
from k3lab.diagnostics.study import Study, Subject, forward, pieces, real_tokens
from k3lab.diagnostics.tokens import TokenClasses, classify
from k3lab.tracking import names

MOST_EXPERTS = 64  # whose pair counts are written out in full
MOST_TOKENS = 1024  # vocabulary up to which tokens are told apart one by one: more would need more data


@dataclass(frozen=True)
class RoutingSettings:
    """How much data a checkpoint's routing is studied on."""

    name: str = "routing"
    batches: int = 16  # validation batches to look at
    sequences: int = 16  # sequences in memory at a time
    capacities: list[float] = field(default_factory=lambda: [1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0])

    on_schedule = False  # no key: this is for k3lab eval

    def __post_init__(self) -> None:
        positive("batches", self.batches)
        positive("sequences", self.sequences)
        if not self.capacities:
            raise ValueError("capacities=[]: must name at least one factor")
        for factor in self.capacities:
            positive("capacities", factor)


@dataclass
class Tally:
    """What one layer's routings add up to."""

    pairs_EE: Tensor  # tokens that two experts share; on the diagonal, tokens of one
    classes_CE: Tensor  # assignments of each class to each expert
    tokens_VE: Tensor | None  # assignments of each token id to each expert


class Routing(Study):
    """One forward pass over the data."""

    def measure(self, subject: Subject) -> tuple[dict[str, float], dict[str, Any], Callable[[Path], None]]:
        """See `Study.measure`."""
        layers = routed_layers(subject.model)
        if not layers:
            raise UserError("diagnostics=routing: this model has no routers; ffn=moe and ffn=latent_moe have")
        classes = classify(subject.vocab_size, subject.decode)
        tallies, batches_NLE = self._look(subject, layers, classes)
        if not len(batches_NLE):
            raise UserError("diagnostics=routing: there is no held-out sequence to look at")
        router = subject.model.routers[0]
        load = LoadBalance(layers, router.experts, router.top_k, sync_on_compute=False)
        load.update(batches_NLE.sum(0))
        metrics = load.compute()
        drops_FL = torch.stack([self._drops(batches_NLE, factor) for factor in self.settings.capacities])
        for factor, drops_L in zip(self.settings.capacities, drops_FL.tolist(), strict=True):
            metrics[names.drop_rate(factor)] = max(drops_L)
            metrics |= {names.layer(names.drop_rate(factor), i): v for i, v in zip(layers, drops_L, strict=True)}
        for i, tally in tallies.items():
            metrics |= {names.layer(n, i): v for n, v in layer_metrics(tally, router.top_k).items()}
        for name in layer_metrics(tallies[layers[0]], router.top_k):
            metrics[name] = sum(metrics[names.layer(name, i)] for i in layers) / len(layers)
        metrics[names.ROUTING_COACTIVATION_CHANCE] = (router.top_k - 1) / (router.experts - 1)

        data: dict[str, Any] = {
            "batches": len(batches_NLE),
            "assignments": int(batches_NLE[:, 0].sum()),
            "top_k": router.top_k,
            "layers": layers,
            "load": batches_NLE.sum(0).tolist(),
            "capacities": self.settings.capacities,
            "drop_rate": drops_FL.T.tolist(),
            "classes": classes.labels,
            "class_counts": {str(i): tally.classes_CE.long().tolist() for i, tally in tallies.items()},
        }
        if router.experts <= MOST_EXPERTS:
            data["pair_counts"] = {str(i): tally.pairs_EE.long().tolist() for i, tally in tallies.items()}

        def draw(folder: Path) -> None:
            from k3lab.diagnostics.figures.study_routing import draw_all  # imports matplotlib

            draw_all(folder, metrics, data, tallies)

        return metrics, data, draw

    @torch.no_grad()
    def _look(self, subject: Subject, layers: list[int], classes: TokenClasses) -> tuple[dict[int, Tally], Tensor]:
        """Add up routings over all data; also the counts of each batch, [batches,L,E] int64."""
        model, experts = subject.model, subject.model.routers[0].experts
        tallies: dict[int, Tally] = {}
        counts: dict[int, Tensor] = {}
        with untouched(model), chosen_experts(model, layers) as ids:
            for number, piece in pieces(subject.batches, self.settings.sequences):
                with subject.precision():
                    forward(model, piece)
                real = real_tokens(piece)
                tokens_N = piece["tokens"].flatten()[real]
                loads = []
                for i in layers:
                    found = tally(ids[i][real], tokens_N, classes, experts)
                    old = tallies.get(i)
                    tallies[i] = found if old is None else add(old, found)
                    loads.append(found.pairs_EE.diagonal().long())
                load_LE = torch.stack(loads)
                counts[number] = counts[number] + load_LE if number in counts else load_LE
        if not counts:
            return tallies, torch.empty(0, len(layers), experts, dtype=torch.int64)
        return tallies, torch.stack([counts[n] for n in sorted(counts)])

    def _drops(self, batches_NLE: Tensor, factor: float) -> Tensor:
        """The share of assignments dropped at a capacity counted by batch: [L]."""
        total_NL = batches_NLE.sum(2)
        dropped_NL = torch.stack([drop_rates(counts_LE, factor) for counts_LE in batches_NLE]) * total_NL
        return dropped_NL.sum(0) / total_NL.sum(0)


@contextmanager
def chosen_experts(model: Any, layers: list[int]) -> Iterator[dict[int, Tensor]]:
    """Inside, the dict yielded holds each routed layer's last choice, [B·T,k] int64."""
    ids: dict[int, Tensor] = {}

    def hook(index: int) -> Any:
        def keep(module: Any, inputs: Any, output: Any) -> None:
            ids[index] = output[1].ids_Tk

        return keep

    handles = [model.layers[i].ffn.register_forward_hook(hook(i)) for i in layers]
    try:
        yield ids
    finally:
        for handle in handles:
            handle.remove()


def tally(ids_Nk: Tensor, tokens_N: Tensor, classes: TokenClasses, experts: int) -> Tally:
    """Count pairs of experts, and pairs of class or token and expert, in fp64 on the CPU."""
    sent_NE = torch.zeros(len(ids_Nk), experts, dtype=torch.float32, device=ids_Nk.device).scatter_(1, ids_Nk, 1.0)

    def with_expert(kind_N: Tensor, kinds: int) -> Tensor:
        cells_Nk = kind_N[:, None] * experts + ids_Nk
        return torch.bincount(cells_Nk.flatten(), minlength=kinds * experts).view(kinds, experts).double().cpu()

    class_N, vocabulary = classes.of_token_V.to(tokens_N.device)[tokens_N], len(classes.of_token_V)
    return Tally(
        (sent_NE.T @ sent_NE).double().cpu(),
        with_expert(class_N, len(classes.labels)),
        with_expert(tokens_N, vocabulary) if vocabulary <= MOST_TOKENS else None,
    )


def add(one: Tally, other: Tally) -> Tally:
    """The tally of both."""
    tokens_VE = one.tokens_VE + other.tokens_VE if one.tokens_VE is not None and other.tokens_VE is not None else None
    return Tally(one.pairs_EE + other.pairs_EE, one.classes_CE + other.classes_CE, tokens_VE)


def layer_metrics(tally: Tally, top_k: int) -> dict[str, float]:
    """Co-activation and specialisation of one layer, by the model's names."""
    load_E = tally.pairs_EE.diagonal()
    together_EE = tally.pairs_EE - torch.diag(load_E)
    found = {
        names.ROUTING_COACTIVATION: float(together_EE.max(1).values.sum() / load_E.sum()),
        names.ROUTING_SPECIALISATION: specialisation(tally.classes_CE),
    }
    if tally.tokens_VE is not None:
        found[names.ROUTING_TOKEN_SPECIALISATION] = specialisation(tally.tokens_VE)
    return found


def specialisation(counts_CE: Tensor) -> float:
    """I(class; expert) / H(expert) from counts, corrected for their number, within [0,1]; 0 for a single expert."""

    def entropy(counts: Tensor) -> float:
        counts = counts[counts > 0]
        total = counts.sum()
        share = counts / total
        # Miller and Madow: a plain estimate is too low by (cells − 1) / 2N.
        return float(-(share * share.log()).sum() + (len(counts) - 1) / (2 * total))

    of_expert = entropy(counts_CE.sum(0))
    information = entropy(counts_CE.sum(1)) + of_expert - entropy(counts_CE.flatten())
    return min(1.0, max(0.0, information / of_expert)) if of_expert > 0 else 0.0


def lift_of_pairs(pairs_EE: Tensor, top_k: int) -> Tensor:
    """How often two experts meet over what their loads alone would give: [E,E], 1 is chance, NaN on the diagonal."""
    E, load_E = len(pairs_EE), pairs_EE.diagonal()
    tokens = load_E.sum() / top_k
    # k different experts a token: even a random choice meets a given one less often than its share of tokens.
    chance = (top_k - 1) / (E - 1) / (top_k / E)
    expected_EE = load_E[:, None] * load_E / tokens * chance
    lift_EE = pairs_EE / expected_EE
    return lift_EE.masked_fill(torch.eye(E, dtype=torch.bool) | (expected_EE == 0), torch.nan)


def lift_of_classes(classes_CE: Tensor) -> Tensor:
    """P(class | expert) / P(class): [C,E], 1 is chance, NaN for an expert or class without tokens."""
    expected_CE = classes_CE.sum(1, keepdim=True) * classes_CE.sum(0) / classes_CE.sum()
    return (classes_CE / expected_CE).masked_fill(expected_CE == 0, torch.nan)
