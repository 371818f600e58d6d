"""The delta rule: a memory that is corrected by what it does not yet answer, whatever decays it.

`S ← diag(e^g) S; S ← S + β k (v − Sᵀk)ᵀ; o = K^-½ Sᵀq`, with q and k of length 1 (arXiv 2406.06484, 2510.26692).
B batch, T time, H query/key heads, G value heads, K key dim, V value dim, C decay logits a head.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from k3lab.mixer.documents import Documents
from k3lab.mixer.recurrent import RecurrentCache, RecurrentMixer
from k3lab_kernels.kda import chunk_kda, fused_recurrent_kda


class DeltaRule(RecurrentMixer):
    """Base of the mixers that write by the delta rule; its settings also have negative_eigenvalues."""

    def remember(
        self,
        q_BTHK: Tensor,
        k_BTHK: Tensor,
        v_BTGV: Tensor,
        beta_BTG: Tensor,
        z_BTGC: Tensor,
        cache: RecurrentCache | None,
        documents: Documents | None,
    ) -> tuple[Tensor, Tensor | None]:
        """See `RecurrentMixer.remember`; documents become the packed sequences of one flat batch."""
        decay = self.decay.kernel_args(z_BTGC)
        arguments: dict[str, Any] = {"q": q_BTHK, "k": k_BTHK, "v": v_BTGV, "beta": beta_BTG, "g": decay.pop("g")}
        options = {
            **decay,
            "use_qk_l2norm_in_kernel": True,
            "use_beta_sigmoid_in_kernel": True,
            "allow_neg_eigval": self.settings.negative_eigenvalues,
            "chunk_size": self.chunk,
        }
        if documents is not None:
            arguments = {name: x.flatten(0, 1).unsqueeze(0) for name, x in arguments.items()}
            options |= {"cu_seqlens": documents.cu_seqlens, "cu_seqlens_cpu": documents.cu_seqlens_cpu}
        if cache is None:
            o, state = chunk_kda(**arguments, **options)
        else:
            kernel = fused_recurrent_kda if v_BTGV.shape[1] == 1 else chunk_kda
            o, state = kernel(**arguments, **options, initial_state=cache.state, output_final_state=True)
        return o.view_as(v_BTGV), state

    def memory_flops_per_token(self) -> int:
        """Products in a chunk, the inverse of its triangular matrix, and the memory read and written."""
        within = self.chunk * (3 * self.key_dim + 2 * self.value_dim) + self.chunk**2 // 3
        return within + 6 * self.key_dim * self.value_dim
