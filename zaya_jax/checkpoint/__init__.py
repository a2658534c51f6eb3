"""Saving, restoring and converting parameters and training state."""
