"""Counter-based random numbers: any row of any step, without drawing the rows before it."""

from __future__ import annotations

import numpy as np

TRAIN, VALIDATION, SIZES = 0, 1, 2  # independent streams of one seed
_WORD = (1 << 64) - 1
_PER_COUNTER = 4  # Philox gives four 64-bit numbers for each value of its counter


def uniform(seed: int, stream: int, step: int, first: int, count: int, draws: int) -> np.ndarray:
    """Uniform numbers in [0, 1), float64 [count, draws]: rows first..first+count-1 of a step.

    A row depends on (seed, stream, step, its index, draws) alone, so every way of cutting a step
    into ranks, micro-batches or workers sees the same rows.
    """
    blocks = -(-draws // _PER_COUNTER)
    counter = np.array([first * blocks, 0, step, stream], dtype=np.uint64)
    bits = np.random.Philox(counter=counter, key=np.array([seed & _WORD, 0], dtype=np.uint64))
    rows = np.random.Generator(bits).random((count, blocks * _PER_COUNTER))
    return rows[:, :draws]
