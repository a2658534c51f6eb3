"""Losses, the training step and loop, metrics, writers and the report."""
