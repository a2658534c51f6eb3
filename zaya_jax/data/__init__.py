"""From text to packed batches, with a position that can be saved."""
