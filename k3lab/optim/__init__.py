"""Optimizers: which parameters decay, and the torch optimizer built for them."""
