"""Numerical kernels: arrays in, arrays out, no configuration objects."""
