"""What transformers does to the balancing bias of the skip class, and how an export survives it.

`from_pretrained` (seen in transformers 5.24) sets that bias, the last of every layer, to -1 after
reading the file. All releases have -1 there; a model trained here need not. Biases only decide
which class is largest, so all of a layer's may be moved together. Moved until the skip class has
-1, they choose as before, and what transformers does on loading changes nothing.
"""

from __future__ import annotations

import enum

import numpy as np

RELEASED_SKIP_BIAS = np.float32(-1.0)


class SkipBias(enum.StrEnum):
    """What an export does with the balancing biases of a layer."""

    KEEP = "keep"  # writes them as they are
    SHIFT = "shift"  # moves them together so that the skip class has -1


def differing_layers(biases: np.ndarray) -> int:
    """Layers in which loading by transformers would change the choice of classes."""
    return int((biases[:, -1].astype(np.float32) != RELEASED_SKIP_BIAS).sum())


def shifted(biases: np.ndarray) -> np.ndarray:
    """The same choices with a skip bias of -1.

    Args:
      biases: [layers, classes], the skip class last.

    Returns:
      float32 [layers, classes].
    """
    wide = biases.astype(np.float64)
    moved = wide - (wide[:, -1:] - float(RELEASED_SKIP_BIAS))
    return moved.astype(np.float32)
