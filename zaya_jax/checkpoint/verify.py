"""Compares two checkpoints of any layouts tensor by tensor, and on request by their logits.

    python -m zaya_jax.checkpoint.verify A B [--logits [IDS]] [--tolerance X]

Exit status 0: equal. 1: they differ, or one cannot be read.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zaya_jax.checkpoint.command import Parser, run_command
from zaya_jax.checkpoint.error import CheckpointError
from zaya_jax.checkpoint.open import open_checkpoint, open_intact
from zaya_jax.checkpoint.progress import Progress
from zaya_jax.checkpoint.reader import BLOCK_BYTES, Reader, blocks, common_block, grown_block
from zaya_jax.checkpoint.tensor_rule import LeafPath
from zaya_jax.config import LayerType, ModelConfig, architecture_differences

# Used when --logits names no tokens.
_DEFAULT_TOKENS = (2, 9, 4, 17, 11, 5, 3, 23, 8, 30, 14, 6, 27, 12, 7, 19)


@dataclasses.dataclass(frozen=True)
class Difference:
    """Where two checkpoints differ in one leaf."""

    path: LeafPath
    largest: float  # absolute difference; infinite where only one is a number
    count: int  # elements that differ by more than the tolerance
    first: str  # tensor and place of the first of them


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two checkpoints, tensor by tensor."""

    leaves: int
    parameters: int
    differences: list[Difference]
    dtype_notes: list[str]
    config_differences: list[str]  # "field: one -> other", of fields that change the numbers

    @property
    def equal(self) -> bool:
        """Whether both are the same model."""
        return not self.differences and not self.config_differences

    @property
    def largest(self) -> float:
        """The largest absolute difference of all."""
        return max((d.largest for d in self.differences), default=0.0)


def compare(
    first: Reader, second: Reader, *, tolerance: float = 0.0, show_progress: bool = False
) -> Comparison:
    """Compares all tensors by value; dtypes may differ and are noted.

    Raises:
      CheckpointError: when the architectures differ, so that tensors do not correspond.
    """
    unlike = architecture_differences(first.config, second.config)
    if set(first.leaves) != set(second.leaves) or any(
        leaf.shape != second.leaves[path].shape for path, leaf in first.leaves.items()
    ):
        listed = ", ".join(unlike) or "the trees of parameters"
        raise CheckpointError(f"{first.path} and {second.path} have other architectures: {listed}")
    other_model = architecture_differences(*map(_read_fields, (first.config, second.config)))
    notes = [f"configurations differ: {line}" for line in unlike if line not in other_model]
    differences = []
    total = sum(leaf.nbytes for leaf in first.leaves.values())
    with Progress("comparing", total, shown=show_progress) as progress:
        for path, leaf in first.leaves.items():
            other = second.leaves[path]
            if leaf.dtype != other.dtype:
                notes.append(f"{'/'.join(path)}: {leaf.dtype.name} and {other.dtype.name}")
            difference = _compare_leaf(first, second, path, tolerance)
            if difference is not None:
                differences.append(difference)
            progress.advance(leaf.nbytes)
    return Comparison(len(first.leaves), first.parameter_count, differences, notes, other_model)


def _read_fields(config: ModelConfig) -> ModelConfig:
    """The same model, alike in fields that it does not read."""
    same: dict[str, Any] = {
        "layer_pattern": config.layer_types,
        "balancing_rule": ModelConfig.balancing_rule,
    }
    if LayerType.SLIDING not in config.layer_types:
        same["sliding_rope_theta"] = ModelConfig.sliding_rope_theta
    if LayerType.FULL not in config.layer_types:
        same["rope_theta"] = ModelConfig.rope_theta
    return config.replace(**same)


def _compare_leaf(
    first: Reader, second: Reader, path: LeafPath, tolerance: float
) -> Difference | None:
    leaf = first.leaves[path]
    unit = common_block(leaf.shape, leaf.chunk, second.leaves[path].chunk)
    block = grown_block(leaf.shape, unit, 4, BLOCK_BYTES)
    largest, count, place = 0.0, 0, ""
    for index in blocks(leaf.shape, block):
        first.release()
        second.release()
        a, b = first.read(path, index), second.read(path, index)
        if _same_bytes(a, b):
            continue
        gap = _absolute_difference(a, b)
        worst = float(gap.max(initial=0.0))
        if worst > tolerance:
            offending = gap > tolerance
            if not count:
                inside = np.unravel_index(int(np.argmax(offending)), gap.shape)
                position = tuple(int(i) + s.start for i, s in zip(inside, index, strict=True))
                values = float(a[inside]), float(b[inside])
                place = (
                    f"{first.place(path, position)}, element {list(position)} of "
                    f"{'/'.join(path)}: {values[0]:.9g} and {values[1]:.9g}"
                )
            count += int(offending.sum())
        largest = max(largest, worst)
    return Difference(path, largest, count, place) if count else None


def _same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two blocks are the same without any arithmetic, which is much quicker."""
    if a.dtype != b.dtype:
        return False
    bits = np.dtype(f"u{a.dtype.itemsize}")
    return np.array_equal(a.reshape(-1).view(bits), b.reshape(-1).view(bits))


def _absolute_difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Float32; 0 where both are the same, NaN among them, infinite where only one is a number."""
    wide_a, wide_b = a.astype(np.float32), b.astype(np.float32)
    with np.errstate(invalid="ignore"):
        gap = np.abs(wide_a - wide_b)
    gap[np.isnan(gap)] = np.inf
    gap[(wide_a == wide_b) | (np.isnan(wide_a) & np.isnan(wide_b))] = 0.0
    return gap


def compare_logits(
    first: str | Path, second: str | Path, tokens: Sequence[int]
) -> tuple[float, int]:
    """Largest difference of the float32 logits, and at how many positions the best token differs.

    Raises:
      CheckpointError: for a token id outside the vocabulary.
    """
    logits = [_logits(path, tokens) for path in (first, second)]
    best = [value.argmax(-1) for value in logits]
    return float(np.abs(logits[0] - logits[1]).max()), int((best[0] != best[1]).sum())


def _logits(path: str | Path, tokens: Sequence[int]) -> np.ndarray:
    # Importing JAX takes a second that comparing tensors does not need.
    import jax
    import jax.numpy as jnp

    from zaya_jax.checkpoint.load import load_checkpoint
    from zaya_jax.model.transformer import Transformer

    stored = open_checkpoint(path).leaves["params", "embedding"].dtype
    config, variables = load_checkpoint(path, dtype=stored)
    if tokens is _DEFAULT_TOKENS:
        fitting = tokens[: config.max_position_embeddings]
        tokens = [token % config.vocab_size for token in fitting]
    outside = [token for token in tokens if not 0 <= token < config.vocab_size]
    if outside:
        raise CheckpointError(
            f"--logits: token {outside[0]} is outside the vocabulary of {config.vocab_size}"
        )
    if len(tokens) > config.max_position_embeddings:
        raise CheckpointError(
            f"--logits: {len(tokens)} tokens, the model takes {config.max_position_embeddings}"
        )
    model = Transformer(config.replace(activation_dtype="float32"))
    row = jnp.asarray([list(tokens)], jnp.int32)
    return np.asarray(jax.jit(model.apply)(variables, row).logits[0])


def _parse_tokens(text: str) -> tuple[int, ...]:
    try:
        tokens = tuple(int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write token ids as 2,9259,236888") from None
    return tokens


def _report(comparison: Comparison, tolerance: float) -> Iterator[str]:
    for note in comparison.dtype_notes:
        yield f"note: {note}"
    for line in comparison.config_differences:
        yield f"differs: configuration: {line}"
    for difference in comparison.differences:
        name = "/".join(difference.path)
        yield (
            f"differs: {name}: {difference.count:,} elements, by up to {difference.largest:.3g}; "
            f"first: {difference.first}"
        )
    same = comparison.leaves - len(comparison.differences)
    within = f" within {tolerance:g}" if tolerance else ""
    yield (
        f"{same} of {comparison.leaves} leaves equal{within}, {comparison.parameters:,} "
        f"parameters; largest difference {comparison.largest:.3g}"
    )


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    parser = Parser(
        prog="python -m zaya_jax.checkpoint.verify",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("first", metavar="A", type=Path)
    parser.add_argument("second", metavar="B", type=Path)
    parser.add_argument(
        "--logits",
        nargs="?",
        type=_parse_tokens,
        const=_DEFAULT_TOKENS,
        metavar="IDS",
        help="also run both models on these token ids, 2,9259,…; without IDS on some small ones",
    )
    parser.add_argument("--tolerance", type=float, default=0.0, help="of tensors and logits")
    options = parser.parse_args(argv)
    if not (math.isfinite(options.tolerance) and options.tolerance >= 0):
        parser.error(f"--tolerance {options.tolerance}: must be a number, 0 or above")
    first, second = open_intact(options.first), open_intact(options.second)
    comparison = compare(first, second, tolerance=options.tolerance, show_progress=True)
    for line in _report(comparison, options.tolerance):
        print(line)
    equal = comparison.equal
    if options.logits is not None:
        largest, flips = compare_logits(options.first, options.second, options.logits)
        print(
            f"logits of {len(options.logits)} tokens: largest difference {largest:.3g}, "
            f"best token differs at {flips} positions"
        )
        equal = equal and largest <= options.tolerance
    print("equal" if equal else "DIFFERENT")
    return 0 if equal else 1


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
