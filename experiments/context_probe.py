"""What a longer context brought: loss by position, and whether a needle far back is found.

    python -m experiments.context_probe --workdir DIR --config experiments/configs/small.py:sft

The first table is the held-out loss by position within a segment: a model that uses its context
gets better with position, one that was stretched too far gets worse behind its old length. The
second hides a sentence with a number at several depths of unrelated text and asks for the number at
the end: it counts as found when every digit is the most likely next token.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from experiments.command_line import run_reporting_errors
from zaya_jax.checkpoint.load import load_checkpoint
from zaya_jax.config import ModelConfig
from zaya_jax.data.pipeline import Batch, load_text, validation_batches
from zaya_jax.data.tokenizer import tokenizer_of
from zaya_jax.evaluation.diagnostics.needles import needle_grid
from zaya_jax.model.transformer import Transformer
from zaya_jax.training.config_file import load_config, to_run_config

DEPTHS = (0.1, 0.5, 0.9)  # where the needle lies: 0 is the beginning of the text


class PositionLoss(NamedTuple):
    """Loss of the learnt tokens at positions start to end - 1 of their segment."""

    start: int
    end: int
    loss: float
    tokens: int


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.context_probe",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workdir", required=True, help="a run or a checkpoint; only read")
    parser.add_argument("--config", required=True, metavar="FILE.py[:NAME]", help="whose data")
    parser.add_argument("--trials", type=int, default=8, help="needles for each length and depth")
    arguments = parser.parse_args(argv)
    data = to_run_config(load_config(arguments.config)).data
    model, variables = load_checkpoint(Path(arguments.workdir))
    window = data.sequence_length
    model = model.replace(max_position_embeddings=max(window, model.max_position_embeddings))
    print(f"{'source':<28}{'positions':>16}{'loss':>9}{'tokens':>10}")
    for source, batches in validation_batches(data, load_text(data)).items():
        for bucket in loss_by_position(model, variables, batches):
            positions = f"{bucket.start}-{bucket.end - 1}"
            print(f"{source:<28}{positions:>16}{bucket.loss:>9.3f}{bucket.tokens:>10,}")
    print(f"\n{'needle at depth':>16}" + "".join(f"{depth:>9.0%}" for depth in DEPTHS))
    grid = needle_grid(
        model,
        variables,
        tokenizer_of(data),
        lengths=(window // 4, window // 2, window),
        depths=DEPTHS,
        trials=arguments.trials,
    )
    for length, shares in zip(grid.lengths, grid.found, strict=True):
        print(f"{length:>16,}" + "".join(f"{share:>9.0%}" for share in shares))
    return 0


def loss_by_position(
    config: ModelConfig, variables: dict[str, Any], batches: Sequence[Batch]
) -> list[PositionLoss]:
    """Mean loss in buckets of positions whose ends are powers of two; empty ones are left out."""
    compute = jax.jit(functools.partial(_token_losses, config))
    window = batches[0]["tokens"].shape[1]
    losses, counts = np.zeros(window), np.zeros(window)
    for batch in batches:
        values = np.asarray(compute(variables, batch)) * batch["loss_weights"]
        np.add.at(losses, batch["positions"], values)
        np.add.at(counts, batch["positions"], batch["loss_weights"])
    edges = [0, *(2**power for power in range(5, window.bit_length() + 1))]
    edges = [edge for edge in edges if edge < window] + [window]
    return [
        PositionLoss(start, end, float(losses[start:end].sum() / count), int(count))
        for start, end in itertools.pairwise(edges)
        if (count := counts[start:end].sum()) > 0
    ]


def _token_losses(
    config: ModelConfig, variables: dict[str, Any], batch: dict[str, Array]
) -> Float[Array, "batch seq"]:
    def one_row(row: dict[str, Array]) -> Float[Array, " seq"]:
        """A window at a time: logits of a whole batch need not fit."""
        output: Any = Transformer(config).apply(
            variables,
            row["tokens"][None],
            positions=row["positions"][None],
            segment_ids=row["segment_ids"][None],
        )
        log_p = jax.nn.log_softmax(output.logits[0])
        return -jnp.take_along_axis(log_p, row["targets"][:, None], axis=-1)[:, 0]

    return jax.lax.map(one_row, dict(batch))


if __name__ == "__main__":
    run_reporting_errors(lambda: main(sys.argv[1:]))
