"""Routing by biased scores, quantile balancing of the bias, and measures of balance."""

from k3lab_kernels.router.metrics import load_metrics, max_vio_floor
from k3lab_kernels.router.op import exact_quantile_bias, quantile_bias, topk_route
from k3lab_kernels.router.reference import naive_quantile_bias, naive_topk_route

__all__ = [
    "exact_quantile_bias",
    "load_metrics",
    "max_vio_floor",
    "naive_quantile_bias",
    "naive_topk_route",
    "quantile_bias",
    "topk_route",
]
