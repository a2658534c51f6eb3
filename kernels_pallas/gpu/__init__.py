"""The Pallas kernels, one file for each direction of an operation."""
