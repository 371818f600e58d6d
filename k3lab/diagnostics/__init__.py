"""Diagnostics: load balance, depth and decay, measured on a schedule without touching the training they observe."""
