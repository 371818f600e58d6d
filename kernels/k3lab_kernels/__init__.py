"""Kernels of k3lab: Kimi Delta Attention, MoE routing, attention over depth. Needs torch and triton alone."""
