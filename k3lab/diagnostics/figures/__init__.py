"""The figures of one run and of one checkpoint: one idea a file, nothing drawn where there is nothing to see."""
