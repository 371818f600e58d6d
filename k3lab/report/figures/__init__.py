"""The figures: one idea a file, one look for all of them."""
