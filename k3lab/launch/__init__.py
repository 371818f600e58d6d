"""Launching: one fresh process a job, its folder, its launcher, and the loop that runs a sweep."""
