"""The ZAYA architecture as pure linen modules."""
