"""Tracking: a run's own files, the process that carries its metrics to MLflow, the store and its dashboard."""
