"""Muon for one matrix at a time, in float64 NumPy, written from the definition."""

from __future__ import annotations

import numpy as np

A, B, C = 3.4445, -4.7750, 2.0315


def orthogonalize(matrix: np.ndarray, steps: int = 5) -> np.ndarray:
    """Newton-Schulz on a single matrix."""
    x = np.asarray(matrix, np.float64)
    norm = np.linalg.norm(x)
    if norm == 0:
        return x
    x = x / norm
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    for _ in range(steps):
        gram = x @ x.T
        x = A * x + (B * gram + C * gram @ gram) @ x
    return x.T if is_tall else x


class Reference:
    """One matrix under Muon with momentum, Nesterov, decay and the scale of AdamW."""

    def __init__(
        self, weight: np.ndarray, *, momentum: float, nesterov: bool, rate: float, decay: float
    ) -> None:
        self.weight = np.asarray(weight, np.float64)
        self.mean = np.zeros_like(self.weight)
        self.momentum, self.nesterov, self.rate, self.decay = momentum, nesterov, rate, decay

    def step(self, gradient: np.ndarray) -> None:
        beta, gradient = self.momentum, np.asarray(gradient, np.float64)
        self.mean = beta * self.mean + (1 - beta) * gradient
        direction = beta * self.mean + (1 - beta) * gradient if self.nesterov else self.mean
        scale = 0.2 * np.sqrt(max(self.weight.shape))
        update = scale * orthogonalize(direction) if np.any(gradient) else 0.0
        self.weight = self.weight - self.rate * (update + self.decay * self.weight)
