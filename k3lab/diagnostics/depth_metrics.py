"""What happens along the depth of a model: sizes, directions, gradients and attention to sources.

h_i is what sublayer i reads before its norm (the topology's mixture), f_i its output; h_L is what the final
norm reads. All are taken over the tokens of a probe.

- ``output_rms`` √E f², ``grad_rms`` √E (∂loss/∂f)² where the loss is the *sum* over the probe's targets, so
  that the number of tokens does not enter;
- ``update_ratio`` E ‖f‖/‖h‖ and ``update_cosine`` E cos(f, h): how much a sublayer changes, and whether it
  grows or erases;
- ``block_influence`` 1 − E cos(h_i, h_{i+1}) (arXiv 2403.03853): near 0, the sublayer could be left out;
- ``angular_distance`` E arccos cos(h_i, h_{i+1}) / π (arXiv 2403.17887): 1/2 is a right angle;
- ``effective_rank`` exp(−Σ p log p), p the normalised singular values of h_i over some of the tokens (Roy and
  Vetterli 2007): at most the smaller of hidden size and number of these tokens;
- per mix over sources: mean weights, entropy in units of log N, mass on the embedding and on the newest source.

L sublayers, N tokens, D hidden size, S sources of one mix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from k3lab.tracking import names

ROOT_MEAN_SQUARES = (names.DEPTH_OUTPUT_RMS, names.DEPTH_GRAD_RMS)  # pieces combine by squares, all others by means


def depth_metrics(
    mixtures: Sequence[Tensor], outputs: Sequence[Tensor], grads: Sequence[Tensor], sample: Tensor
) -> dict[str, float]:
    """Metrics of every sublayer from h [N,D] × (L + 1), f [N,D] × L and ∂loss/∂f [N,D] × L.

    ``sample`` [M] int64 are the tokens that the effective rank is measured on.
    """
    by_name = depth_table(mixtures, outputs, grads)
    by_name[names.DEPTH_EFFECTIVE_RANK] = effective_rank(torch.stack([h.detach()[sample] for h in mixtures[:-1]]))
    return by_sublayer(by_name)


def depth_table(mixtures: Sequence[Tensor], outputs: Sequence[Tensor], grads: Sequence[Tensor]) -> dict[str, Tensor]:
    """The means over tokens, by name, [L] each: all metrics but the effective rank."""
    mixtures_LND = torch.stack([h.detach().float() for h in mixtures])
    outputs_LND = torch.stack([f.detach().float() for f in outputs])
    grads_LND = torch.stack([g.detach().float() for g in grads])
    inputs_LND = mixtures_LND[:-1]
    turn_LN = F.cosine_similarity(inputs_LND, mixtures_LND[1:], dim=-1)
    return {
        names.DEPTH_OUTPUT_RMS: rms(outputs_LND),
        names.DEPTH_GRAD_RMS: rms(grads_LND),
        names.DEPTH_UPDATE_RATIO: update_ratio(outputs_LND, inputs_LND),
        names.DEPTH_UPDATE_COSINE: F.cosine_similarity(outputs_LND, inputs_LND, dim=-1).mean(1),
        names.DEPTH_BLOCK_INFLUENCE: 1 - turn_LN.mean(1),
        names.DEPTH_ANGULAR_DISTANCE: turn_LN.clamp(-1, 1).arccos().mean(1) / math.pi,
    }


def by_sublayer(by_name: Mapping[str, Tensor]) -> dict[str, float]:
    """``{name: [L]}`` → ``{name/layer_00: value, …}``, in one copy from the device."""
    device = next(iter(by_name.values())).device
    table = torch.stack([values_L.double().to(device) for values_L in by_name.values()]).tolist()
    return {
        names.depth(name, i): value for name, row in zip(by_name, table, strict=True) for i, value in enumerate(row)
    }


def source_metrics(weights: Sequence[Tensor | None], max_weights: int) -> dict[str, float]:
    """Metrics of each mix over two or more sources, from its weights [S,N]; the last one is the output's.

    The single weights are left out when there are more than ``max_weights`` of them in all.
    """
    mixes = {i: p_SN.detach().double() for i, p_SN in enumerate(weights) if p_SN is not None and len(p_SN) > 1}
    if not mixes:
        return {}
    single = sum(len(p_SN) for p_SN in mixes.values()) <= max_weights
    keys: list[str] = []
    values: list[Tensor] = []
    for i, p_SN in mixes.items():
        index = i if i < len(weights) - 1 else None
        mean_S = p_SN.mean(1)
        entropy = -torch.special.xlogy(p_SN, p_SN).sum(0).mean() / math.log(len(p_SN))
        keys += [
            names.depth(names.DEPTH_SOURCE_ENTROPY, index),
            names.depth(names.DEPTH_EMBEDDING_MASS, index),
            names.depth(names.DEPTH_LAST_SOURCE_MASS, index),
        ]
        values += [entropy[None], mean_S[:1], mean_S[-1:]]
        if single:
            keys += [names.source_weight(index, source) for source in range(len(p_SN))]
            values.append(mean_S)
    return dict(zip(keys, torch.cat(values).tolist(), strict=True))


def rms(x_LND: Tensor) -> Tensor:
    """√E x² over tokens and channels: [L]."""
    return x_LND.square().mean((1, 2)).sqrt()


def update_ratio(outputs_LND: Tensor, inputs_LND: Tensor) -> Tensor:
    """The mean over tokens of ‖f‖/‖h‖: [L]."""
    norms_LN = inputs_LND.norm(dim=-1).clamp_min(torch.finfo(inputs_LND.dtype).tiny)
    return (outputs_LND.norm(dim=-1) / norms_LN).mean(1)


def effective_rank(x_LND: Tensor) -> Tensor:
    """exp of the entropy of the normalised singular values of each [N,D] matrix: [L], NaN for a non-finite one.

    From the eigenvalues of the smaller Gram matrix, in fp64 because that squares the condition number, and on the
    CPU because many small symmetric matrices are what a GPU is slow at. The result is on the CPU.
    """
    x_LND = x_LND.double()
    gram_LMM = (x_LND @ x_LND.mT if x_LND.shape[1] <= x_LND.shape[2] else x_LND.mT @ x_LND).cpu()
    finite_L = gram_LMM.isfinite().flatten(1).all(1)
    eigenvalues_LM = torch.linalg.eigvalsh(torch.where(finite_L[:, None, None], gram_LMM, 0.0))
    sigma_LM = eigenvalues_LM.clamp_min(0).sqrt()
    p_LM = sigma_LM / sigma_LM.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    rank_L = torch.special.xlogy(p_LM, p_LM).sum(1).neg().exp()
    return torch.where(finite_L, rank_L, math.nan)


def linear_cka(x_LND: Tensor) -> Tensor:
    """Linear CKA (arXiv 1905.00414, §3) of every two of the [N,D] matrices: [L,L] in [0,1], fp64.

    ⟨K_i, K_j⟩ / (‖K_i‖ ‖K_j‖) with K = X Xᵀ of the columns less their means: 1 for the same representation up
    to a rotation and a factor. NaN beside a matrix that is constant over tokens or not finite.
    """
    x_LND = x_LND.double()
    x_LND = x_LND - x_LND.mean(1, keepdim=True)
    gram_LM = (x_LND @ x_LND.mT).flatten(1)
    gram_LM = gram_LM / gram_LM.norm(dim=1, keepdim=True)
    return (gram_LM @ gram_LM.mT).clamp(max=1.0)
