"""The report: what the runs of an experiment say, with its uncertainty, on one page."""
