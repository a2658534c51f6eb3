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
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from experiments.command_line import run_reporting_errors
from zaya_jax.checkpoint.load import load_checkpoint
from zaya_jax.config import ModelConfig
from zaya_jax.data.pipeline import Batch, load_text, validation_batches
from zaya_jax.data.tokenizer import Tokenizer, tokenizer_of
from zaya_jax.model.transformer import Transformer
from zaya_jax.training.config_file import load_config, to_run_config

DEPTHS = (0.1, 0.5, 0.9)  # where the needle lies: 0 is the beginning of the text
_FILLER = ("The road is long.", "A bird sings.", "Rain falls on the roof.", "The kettle is warm.")


class PositionLoss(NamedTuple):
    """Loss of the learnt tokens at positions start to end - 1 of their segment."""

    start: int
    end: int
    loss: float
    tokens: int


class Needle(NamedTuple):
    """A text that ends with the number hidden in it."""

    ids: list[int]
    answer_length: int  # tokens of the number at the end


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.context_probe", description=(__doc__ or "").splitlines()[0]
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
    tokenizer = tokenizer_of(data)
    for length in (window // 4, window // 2, window):
        shares = [
            needles_found(model, variables, make_needles(tokenizer, length, d, arguments.trials))
            for d in DEPTHS
        ]
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


def make_needles(tokenizer: Tokenizer, length: int, depth: float, count: int) -> list[Needle]:
    """Texts of nearly `length` tokens with a number hidden at `depth` and repeated at the end."""
    random_source = random.Random(f"{length} {depth}")
    needles = []
    for _ in range(count):
        number = "".join(random_source.choices("123456789", k=4))
        fact, question = f" The secret number is {number}.", " The secret number is"
        answer = tokenizer.encode(f" {number}")
        room = length - 1 - sum(len(tokenizer.encode(t)) for t in (fact, question)) - len(answer)
        filler: list[int] = []
        while len(filler) < room:
            filler += tokenizer.encode(f" {random_source.choice(_FILLER)}")
        cut = int(depth * room)
        before, after = filler[:cut], filler[cut : max(room, 0)]
        ids = [tokenizer.bos_id, *before, *tokenizer.encode(fact), *after]
        needles.append(Needle([*ids, *tokenizer.encode(question), *answer], len(answer)))
    return needles


def needles_found(
    config: ModelConfig, variables: dict[str, Any], needles: Sequence[Needle]
) -> float:
    """Share of needles of which every token is predicted."""
    width = max(len(needle.ids) for needle in needles)
    tokens = np.zeros((len(needles), width), np.int32)
    is_answer = np.zeros((len(needles), width), np.bool_)
    for row, needle in enumerate(needles):
        end = len(needle.ids)
        tokens[row, :end] = needle.ids
        is_answer[row, end - needle.answer_length : end] = True
    found = jax.jit(functools.partial(_all_predicted, config))(variables, tokens, is_answer)
    return float(np.mean(np.asarray(found)))


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


def _all_predicted(
    config: ModelConfig,
    variables: dict[str, Any],
    tokens: Int[Array, "batch seq"],
    is_answer: Bool[Array, "batch seq"],
) -> Bool[Array, " batch"]:
    def one_row(row: tuple[Array, Array]) -> Bool[Array, ""]:
        ids, asked = row
        output: Any = Transformer(config).apply(variables, ids[None])
        predicted = jnp.argmax(output.logits[0], axis=-1)
        return jnp.all(jnp.where(asked[1:], predicted[:-1] == ids[1:], True))

    return jax.lax.map(one_row, (tokens, is_answer))


if __name__ == "__main__":
    run_reporting_errors(lambda: main(sys.argv[1:]))
