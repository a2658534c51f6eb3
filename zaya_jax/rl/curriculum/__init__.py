"""Keeping problems at the edge of the model's ability."""
