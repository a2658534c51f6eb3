"""Jobs: each composes the parts of zaya_jax in reading order."""
