"""What every router offers: a pure `route`, statistics counted once a micro-batch, one update a global batch.

T tokens of a micro-batch, D hidden size, E experts, k experts a token, L routers stacked in one collective.

The life of a global batch: `route` for every micro-batch with the bias that the previous global batch left,
`count` once for each of them, then `end_of_global_batch` pools the statistics of all micro-batches and ranks
and moves the biases. Recomputation and evaluation call `route` alone, so they change nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

TINY = 1e-20  # keeps the normalised weights finite when every chosen score underflows


class Routing(NamedTuple):
    """Where one micro-batch goes; padding is routed like any token but appears in no statistic."""

    ids_Tk: Tensor  # int64, chosen experts, the best first
    weights_Tk: Tensor  # fp32 (fp64 for fp64), mixing weights from unbiased scores; carries the gradient
    counts_E: Tensor  # int64, real tokens sent to each expert
    statistics: Tensor | None = None  # what `Router.count` adds to `Router.pending`; None in evaluation
    aux_loss: Tensor | None = None  # scalar, times its coefficient, a mean over the micro-batch's real tokens


class Router(nn.Module, ABC):
    """Base of all routers; ctor ``(settings, hidden_size, experts, top_k)``.

    ``weight`` [E,D] makes the logits. ``bias`` [E] (or None) only selects, never weighs; it is fp32 whatever
    the model is cast to, and only ever written in place. ``pending`` (or None) holds the statistics of the
    global batch under way. Both are persistent, so that a checkpoint in mid-accumulation loses nothing.
    Under DistributedDataParallel set ``broadcast_buffers=False``: each rank counts its own tokens.
    """

    bias: Tensor | None
    pending: Tensor | None
    summed = True  # pending is pooled over ranks by adding; otherwise by `gather`

    def __init__(self, settings: Any, hidden_size: int, experts: int, top_k: int) -> None:
        super().__init__()
        if not 1 <= top_k < experts:
            raise ValueError(f"top_k={top_k}: must lie in [1, {experts - 1}], below experts={experts}")
        self.settings = settings
        self.hidden_size = hidden_size
        self.experts = experts
        self.top_k = top_k
        self.weight = nn.Parameter(torch.empty(experts, hidden_size))
        # logits of a normalised input start with standard deviation 1/2, whatever the width
        nn.init.normal_(self.weight, std=0.5 * hidden_size**-0.5)
        self.register_buffer("bias", None)
        self.register_buffer("pending", None)

    @abstractmethod
    def route(self, x_TD: Tensor, mask_T: Tensor | None = None) -> Routing:
        """Choose k experts a token; ``mask_T`` (bool) is False at padding. Pure: changes no buffer."""

    def update(self, pooled: Tensor) -> None:
        """Move the bias in place, from statistics pooled over a whole global batch."""

    @classmethod
    def update_stack(cls, routers: list[Router], pooled: Tensor) -> None:
        """Update L routers of one kind from ``pooled`` [L, …]; a rule that can solve all at once overrides it."""
        for router, statistics in zip(routers, pooled, strict=True):
            router.update(statistics)

    @torch.no_grad()
    def count(self, routing: Routing) -> None:
        """Add a micro-batch to the global batch under way; call once each. A module in eval mode ignores it."""
        if self.training and self.pending is not None and routing.statistics is not None:
            self.pending += routing.statistics

    def reset(self) -> None:
        """Forget the statistics of the global batch under way."""
        if self.pending is not None:
            self.pending.zero_()

    def gather(self, group: dist.ProcessGroup | None) -> Tensor:
        """Pool ``pending`` over the ranks where adding is not the way; needs ``summed = False``."""
        assert self.pending is not None
        return self.pending

    def end_of_global_batch(self, group: dist.ProcessGroup | None = None) -> None:
        """Same as the module's function, for this router alone."""
        end_of_global_batch([self], group)

    def flops_per_token(self) -> int:
        """Forward FLOPs a token of the logits; a multiply-add counts as two."""
        return 2 * self.hidden_size * self.experts

    # ---- shared steps of `route` ------------------------------------------------------------------------

    def logits(self, x_TD: Tensor, mask_T: Tensor | None = None) -> Tensor:
        """[T,E] in fp32 (fp64 if the input or the weight is), also under autocast; checks the shapes."""
        if x_TD.ndim != 2 or x_TD.shape[1] != self.hidden_size:
            raise ValueError(f"x has shape {tuple(x_TD.shape)}: must be [tokens, {self.hidden_size}]")
        if mask_T is not None and (mask_T.shape != x_TD.shape[:1] or mask_T.dtype != torch.bool):
            raise ValueError(
                f"mask is {mask_T.dtype} {tuple(mask_T.shape)}: must be bool, one entry for each of "
                f"{x_TD.shape[0]} tokens"
            )
        dtype = torch.float64 if torch.float64 in (x_TD.dtype, self.weight.dtype) else torch.float32
        with torch.autocast(x_TD.device.type, enabled=False):
            logits_TE = F.linear(x_TD.to(dtype), self.weight.to(dtype))
        # NaN comes from x: the experts carry it on to the loss, where training stops and tells which layer
        return logits_TE.nan_to_num(nan=0.0)

    def mixing_weights(self, scores_Tk: Tensor) -> Tensor:
        """Unbiased scores of the chosen experts → weights: normalised over the k if set, times the scale."""
        if self.settings.normalise:
            scores_Tk = scores_Tk / scores_Tk.sum(-1, keepdim=True).clamp_min(TINY)
        return scores_Tk * self.settings.scale

    @torch.no_grad()
    def expert_counts(self, ids_Tk: Tensor, mask_T: Tensor | None = None) -> Tensor:
        """Real tokens sent to each expert, [E] int64."""
        ones_Tk = torch.ones_like(ids_Tk) if mask_T is None else mask_T[:, None].expand_as(ids_Tk).long()
        zeros_E = torch.zeros(self.experts, dtype=torch.int64, device=ids_Tk.device)
        return zeros_E.scatter_add_(0, ids_Tk.flatten(), ones_Tk.flatten())

    # ---- buffers keep their dtype -----------------------------------------------------------------------

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Router:
        kept = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        super()._apply(fn, recurse)
        for name, old in kept.items():
            new = self._buffers[name]
            assert new is not None
            if new.dtype != old.dtype:  # .bfloat16() and the like: follow the device, not the dtype
                self._buffers[name] = old.to(new.device)
        return self


@torch.no_grad()
def end_of_global_batch(routers: Iterable[Router], group: dist.ProcessGroup | None = None) -> None:
    """Pool every router's statistics over ``group``, move the biases in place, and start a new global batch.

    Statistics of the same kind travel in one SUM all-reduce. ``group`` None means the default process group if
    one is initialised, else this process alone; with tensor parallelism pass the data-parallel group, since
    replicas of the same tokens must not be added. Every rank must call it with routers in the same order.
    """
    distributed = dist.is_available() and dist.is_initialized()
    stacks: dict[tuple, list[Router]] = defaultdict(list)
    for router in routers:
        if router.pending is None:
            continue
        if router.summed:
            stacks[type(router), router.top_k, router.pending.shape, router.pending.dtype].append(router)
        else:
            router.update(router.gather(group) if distributed else router.pending)
            router.reset()
    for stack in stacks.values():
        # a fresh tensor: reducing in place over a live buffer would count a rank twice if it is reduced again
        pooled = torch.stack([router.pending for router in stack])  # type: ignore[misc]
        if distributed:
            dist.all_reduce(pooled, group=group)
        type(stack[0]).update_stack(stack, pooled)
        for router in stack:
            router.reset()
