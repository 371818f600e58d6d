"""Attention over depth: single-pass and two-phase mixes of residual sources."""

from k3lab_kernels.attnres.op import attnres_inter, attnres_merge, fused_attnres
from k3lab_kernels.attnres.reference import naive_attnres

__all__ = ["attnres_inter", "attnres_merge", "fused_attnres", "naive_attnres"]
