"""Kimi Delta Attention: chunkwise and recurrent paths, and the recurrence that both must equal."""

from k3lab_kernels.kda.op import chunk_kda, fused_recurrent_kda
from k3lab_kernels.kda.reference import naive_recurrent_kda

__all__ = ["chunk_kda", "fused_recurrent_kda", "naive_recurrent_kda"]
