"""Sweeps: which jobs the values on a command line mean."""
