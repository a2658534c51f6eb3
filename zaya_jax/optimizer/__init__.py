"""Optimisers, schedules and the controller of the balancing biases."""
