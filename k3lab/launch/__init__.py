"""Launching: one run in this process, or one fresh process for every job of a sweep."""
