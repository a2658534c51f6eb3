"""What experts of 8 and 4 bits cost in loss, and what they save.

    python benchmarks/expert_bits.py --checkpoint DIR --text FILE [--tokens 16384] [--json FILE]

Mean cross entropy (nats a token) of a text under the checkpoint as it is and with its experts
rounded, over windows of 512 tokens. Use a text that the model has not been trained on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zaya_jax import ModelConfig, Transformer
from zaya_jax.checkpoint.load import load_checkpoint
from zaya_jax.inference.command import find_tokenizer
from zaya_jax.inference.quantized import BITS, with_rounded_experts

WINDOW = 512


def mean_loss(config: ModelConfig, variables: dict[str, Any], windows: np.ndarray) -> float:
    """Of every token but the first of each window, [windows, WINDOW]."""

    @jax.jit
    def loss(own: dict[str, Any], tokens: jax.Array) -> jax.Array:
        logits = Transformer(config).apply(own, tokens).logits[:, :-1]
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=2)
        return -jnp.mean(picked)

    return float(np.mean([loss(variables, jnp.asarray(window[None])) for window in windows]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--checkpoint", required=True, metavar="DIR")
    parser.add_argument("--tokenizer", metavar="NAME", help="default: the checkpoint's own")
    parser.add_argument("--text", required=True, type=Path, metavar="FILE")
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()

    config, variables = load_checkpoint(arguments.checkpoint)
    tokenizer = find_tokenizer(arguments.checkpoint, arguments.tokenizer)
    ids = tokenizer.encode(arguments.text.read_text(encoding="utf-8"))[: arguments.tokens]
    windows = np.asarray(ids[: len(ids) // WINDOW * WINDOW], np.int32).reshape(-1, WINDOW)
    losses = {"as it is": mean_loss(config, variables, windows)}
    for bits in sorted(BITS, reverse=True):
        rounded = jax.jit(with_rounded_experts, static_argnums=1)(variables, bits)
        losses[f"{bits} bits"] = mean_loss(config, rounded, windows)
    for name, loss in losses.items():
        print(f"{name:10}{loss:>10.4f}{loss - losses['as it is']:>+10.4f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(losses, indent=2) + "\n")


if __name__ == "__main__":
    main()
