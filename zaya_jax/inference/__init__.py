"""Generating text from a model."""
