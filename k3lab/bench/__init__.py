"""Benchmarks of the kernels, always beside a peer and a floor measured in the same run."""
