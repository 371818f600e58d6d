"""The language model: embedding, decoder layers on a residual stream, output head.

B batch, T time, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from k3lab.mixer.base import linear
from k3lab.mixer.documents import find_documents
from k3lab.model.layer import DecoderLayer
from k3lab.residual.base import Residual
from k3lab.router.base import Router, Routing


class ModelOutput(NamedTuple):
    """Logits [B,T,V] and the routing of every layer that has a router, in order of depth."""

    logits_BTV: Tensor
    routings: tuple[Routing, ...]


class TiedHead(nn.Module):
    """The embedding's weights used as the head; owns no parameter, so that none is saved or counted twice."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self._embedding = (embedding,)  # a tuple hides it from the module tree

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Hidden states → logits."""
        return F.linear(hidden_BTD, self._embedding[0].weight)


class LanguageModel(nn.Module):
    """Decoder layers between an embedding and a head; the residual topology is asked, never known."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        layers: Sequence[DecoderLayer],
        residual: Residual,
        init_std: float = 0.02,
        tie_embeddings: bool = False,
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.embedding = nn.Embedding(vocab_size, hidden_size)
        nn.init.normal_(self.embedding.weight, std=init_std)
        self.layers = nn.ModuleList(layers)
        self.residual = residual
        self.head = TiedHead(self.embedding) if tie_embeddings else linear(hidden_size, vocab_size, init_std)

    @property
    def routers(self) -> list[Router]:
        """The routers in order of depth, one for each of ``ModelOutput.routings``."""
        return [layer.ffn.router for layer in self.decoder_layers if layer.ffn.router is not None]

    @property
    def decoder_layers(self) -> list[DecoderLayer]:
        """The layers with their type."""
        return [cast(DecoderLayer, layer) for layer in self.layers]

    def forward(
        self,
        tokens_BT: Tensor,
        mask_BT: Tensor | None = None,
        caches: Sequence[Any] | None = None,
        documents_BT: Tensor | None = None,
    ) -> ModelOutput:
        """Token ids [B,T] int64 → logits of the next tokens.

        ``mask_BT`` (bool) is False at padding, which must follow the real tokens of its sequence. With
        ``caches`` from `new_caches` the tokens continue those of earlier calls. Runs of equal integers in
        ``documents_BT`` are documents, each of which gives the logits that it would give alone.
        """
        if caches is not None and documents_BT is not None:
            raise ValueError("documents: decode one document a sequence; caches hold one memory for each")
        documents = None if documents_BT is None else find_documents(documents_BT)
        stream = self.residual.start(self.embedding(tokens_BT))
        routings = []
        for index, layer in enumerate(self.layers):
            cache = None if caches is None else caches[index]
            stream, routing = layer(self.residual, stream, mask_BT, cache, documents)
            if routing is not None:
                routings.append(routing)
        return ModelOutput(self.head(self.residual.finish(stream)), tuple(routings))

    def new_caches(self, batch: int, dtype: torch.dtype | None = None) -> list[Any]:
        """Empty decoding caches, one a layer, for ``batch`` sequences; keys and values kept in ``dtype``."""
        weight = self.embedding.weight
        return [layer.mixer.new_cache(batch, weight.device, dtype or weight.dtype) for layer in self.decoder_layers]

    def audit(self, seq_len: int = 2048) -> dict[str, Any]:
        """Parameters, FLOPs and decoding memory; see `k3lab.model.audit.audit`."""
        from k3lab.model.audit import audit  # the audit reads the classes of this file

        return audit(self, seq_len)
