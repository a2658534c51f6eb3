"""Tasks, samples of a model, statistics of them, and diagnostics of a checkpoint."""
