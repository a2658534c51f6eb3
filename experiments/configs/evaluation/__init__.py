"""What to evaluate."""
