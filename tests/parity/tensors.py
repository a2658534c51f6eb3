"""Random released-layout tensors in which every path of the model matters."""

from __future__ import annotations

import zlib

import jax
import numpy as np

from tests.parity.cases import ParityCase
from zaya_jax.checkpoint.layouts import tensors_from_variables, transformers_layout
from zaya_jax.model.transformer import Transformer


def random_tensors(case: ParityCase) -> dict[str, np.ndarray]:
    """Float32 tensors by released name; a function of the case alone."""
    model = Transformer(case.model)
    tokens = jax.ShapeDtypeStruct((1, 4), np.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens)
    blank = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
    rules = transformers_layout(case.model)
    return {
        name: _random_tensor(name, tensor.shape, case)
        for name, tensor in tensors_from_variables(rules, case.model, blank)
    }


def _random_tensor(name: str, shape: tuple[int, ...], case: ParityCase) -> np.ndarray:
    rng = np.random.default_rng([case.seed, zlib.crc32(name.encode())])
    noise = rng.standard_normal(shape)
    return (_center(name) + _spread(name, shape, case) * noise).astype(np.float32)


def _center(name: str) -> float:
    multiplies = name.endswith(("temp", "_scale", "norm.weight"))
    return 1.0 if multiplies else 0.0


def _spread(name: str, shape: tuple[int, ...], case: ParityCase) -> float:
    if name.endswith("balancing_biases"):
        return 0.3  # large enough to decide some choices, for the skip class too
    if "router_mlp.fc" in name and name.endswith("bias"):
        return 0.05  # small, or every token takes the same expert
    if name.endswith(("temp", "_scale", "norm.weight")):
        return 0.3
    if name.endswith("gate.down_proj.bias"):
        return 0.1 * case.router_down_gain
    if name.endswith("bias"):
        return 0.2
    if name.endswith("gate.down_proj.weight"):
        return case.router_down_gain / shape[-1] ** 0.5
    if ".mlp.gate." in name:
        return case.router_gain / shape[-1] ** 0.5
    if "conv_qk" in name:
        return 0.5
    if "embed_tokens" in name or "lm_head" in name:
        return 0.2
    return shape[-1] ** -0.5
