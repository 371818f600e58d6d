"""The optimizer behind optim=muon: Muon for matrices and AdamW for the rest, in one object that counts one step.

Muon (Jordan et al., kellerjordan.github.io/posts/muon) moves a matrix by its orthogonalised momentum; scaled as
in Moonlight (Liu et al., arXiv 2502.16982, Eq. 4) its update has the root mean square of AdamW's, so that both
share a learning rate and a weight decay.

H heads or experts, M rows, C columns of a matrix, N matrices of one shape.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from k3lab.optim.matrices import Stack

# One Newton–Schulz step maps a singular value σ to 3.4445 σ − 4.7750 σ³ + 2.0315 σ⁵: five of them bring all but
# the smallest near 1, which is faster than bringing them to 1 exactly.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
TINY = 1e-7  # keeps a momentum of zeros at zero, and one that has died away from being blown up
LARGEST = 1 << 26  # elements orthogonalised at once: many matrices a call, but bounded memory


class MuonAdamW(torch.optim.Optimizer):
    """Groups with `kind` muon (momentum, nesterov, steps, rms) or adamw (betas, eps); all with lr and weight_decay.

    `stacks` says how each parameter of a muon group is read as matrices. State: `momentum`, or `step` (int),
    `exp_avg` and `exp_avg_sq`, in the dtype of the parameter. Parameters without a gradient are left alone.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], stacks: Mapping[Any, Stack], lr: float) -> None:
        self.stacks = stacks
        super().__init__(groups, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move every parameter once; returns the value of `closure`, which is run first, with gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                (self._muon if group["kind"] == "muon" else self._adamw)(group, parameters)
        return loss

    def _muon(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        gradients = _gradients(parameters)
        momenta = []
        for p in parameters:
            state = self.state[p]
            if not state:
                state["momentum"] = torch.zeros_like(p)
            momenta.append(state["momentum"])
        torch._foreach_mul_(momenta, group["momentum"])
        torch._foreach_add_(momenta, gradients)
        directions = torch._foreach_add(gradients, momenta, alpha=group["momentum"]) if group["nesterov"] else momenta
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        matrices = [
            pair
            for p, direction in zip(parameters, directions, strict=True)
            for pair in zip(self.stacks[p].matrices(p), self.stacks[p].matrices(direction), strict=True)
        ]
        for batch in _batches(matrices):
            x_NMC = orthogonalise(torch.cat([direction for _, direction in batch]), group["steps"])
            scale = group["lr"] * group["rms"] * math.sqrt(max(x_NMC.shape[1:]))
            for (p_HMC, _), x_HMC in zip(batch, x_NMC.split([p.shape[0] for p, _ in batch]), strict=True):
                p_HMC.add_(x_HMC, alpha=-scale)

    def _adamw(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        by_step: dict[int, list[Tensor]] = defaultdict(list)  # one entry, unless gradients were missing at times
        for p in parameters:
            state = self.state[p]
            if not state:
                state |= {"step": 0, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            state["step"] += 1
            by_step[state["step"]].append(p)
        first, second = group["betas"]
        for step, own in by_step.items():
            gradients = _gradients(own)
            means = [self.state[p]["exp_avg"] for p in own]
            squares = [self.state[p]["exp_avg_sq"] for p in own]
            torch._foreach_mul_(own, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_lerp_(means, gradients, 1 - first)
            torch._foreach_mul_(squares, second)
            torch._foreach_addcmul_(squares, gradients, gradients, 1 - second)
            roots = torch._foreach_sqrt(squares)
            torch._foreach_div_(roots, math.sqrt(1 - second**step))
            torch._foreach_add_(roots, group["eps"])
            torch._foreach_addcdiv_(own, means, roots, -group["lr"] / (1 - first**step))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "stacks": self.stacks}


def orthogonalise(x_NMC: Tensor, steps: int) -> Tensor:
    """Matrices with the singular vectors of x and singular values near 1, by Newton–Schulz.

    In bf16 on GPUs, else in fp32 (fp64 for fp64), which is also the dtype of the result.
    """
    a, b, c = COEFFICIENTS
    wide = x_NMC if x_NMC.dtype == torch.float64 else x_NMC.float()
    tall = x_NMC.shape[1] > x_NMC.shape[2]
    if tall:  # the products below are as large as the first side
        wide = wide.mT
    wide = wide / (torch.linalg.matrix_norm(wide, keepdim=True) + TINY)
    x = wide.bfloat16() if wide.is_cuda and wide.dtype == torch.float32 else wide
    for _ in range(steps):
        square = torch.bmm(x, x.mT)
        polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if tall else x


def _gradients(parameters: list[Tensor]) -> list[Tensor]:
    return [p.grad for p in parameters if p.grad is not None]


def _batches(pairs: list[tuple[Tensor, Tensor]]) -> Iterable[list[tuple[Tensor, Tensor]]]:
    """Cut (parameter, direction) pairs [H,M,C] into lists of one shape, none larger than it has to be."""
    by_shape: dict[tuple[Any, ...], list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for pair in pairs:
        by_shape[(*pair[0].shape[1:], pair[0].dtype, pair[0].device)].append(pair)
    for alike in by_shape.values():
        batch: list[tuple[Tensor, Tensor]] = []
        for pair in alike:
            if batch and sum(p.numel() for p, _ in batch) + pair[0].numel() > LARGEST:
                yield batch
                batch = []
            batch.append(pair)
        yield batch
