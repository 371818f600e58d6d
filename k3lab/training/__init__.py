"""Training: the LightningModule, the life of a run, checkpoints, resume, progress, evaluation and generation."""
