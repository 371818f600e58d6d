"""Step-indexed data: every batch is a function of (seed, step, sequence index)."""
