"""The ZAYA1 family of MoE++ language models in JAX."""
