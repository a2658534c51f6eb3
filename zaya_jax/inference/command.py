"""What the commands of this room share: their options, and how their errors look."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

from kernels_pallas.backend import KernelError
from zaya_jax.checkpoint.command import Parser as Parser
from zaya_jax.checkpoint.command import run_command as run_reporting
from zaya_jax.checkpoint.load import load_checkpoint
from zaya_jax.checkpoint.manager import CheckpointError
from zaya_jax.checkpoint.open import open_checkpoint
from zaya_jax.checkpoint.orbax_reader import TOKENIZER_FILE
from zaya_jax.config import ConfigError
from zaya_jax.data.config import DataError
from zaya_jax.data.tokenizer import Tokenizer, load_tokenizer
from zaya_jax.inference.engine import Engine
from zaya_jax.inference.request import RequestError, SamplingParams
from zaya_jax.inference.settings import EngineSettings

# What a user can mend. Any other exception is a fault of the program and shows its traceback.
USER_ERRORS = (CheckpointError, ConfigError, DataError, RequestError, KernelError, OSError)


def run_command(run: Callable[[], int]) -> NoReturn:
    """Exits with the status of `run`; an error the user can mend is one line and status 1."""
    run_reporting(run, USER_ERRORS)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Which model, and how much of it at a time."""
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="DIR",
        help="a run's folder, a checkpoint, or a folder downloaded from the hub",
    )
    parser.add_argument(
        "--tokenizer", metavar="NAME", help="name or tokenizer.json; default: the checkpoint's own"
    )
    parser.add_argument(
        "--cache-tokens", type=int, default=16_384, help="tokens the cache can hold (16384)"
    )
    parser.add_argument(
        "--mesh",
        type=_mesh_sizes,
        default={},
        metavar="data=N,expert=M",
        help="split slots and cache over N devices, experts over M (one device)",
    )


def _mesh_sizes(text: str) -> dict[str, int]:
    """`data=2,expert=2` as the fields of `EngineSettings`."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        axis, _, size = part.partition("=")
        if axis not in ("data", "expert") or not size.isdecimal() or f"mesh_{axis}" in sizes:
            raise argparse.ArgumentTypeError(
                f"{text!r}: must be data=N, expert=M or both with a comma between"
            )
        sizes[f"mesh_{axis}"] = int(size)
    return sizes


def add_sampling_options(parser: argparse.ArgumentParser, *, max_tokens: int) -> None:
    """How to draw."""
    parser.add_argument("--max-tokens", type=int, default=max_tokens, help=f"({max_tokens})")
    parser.add_argument("--temperature", type=float, default=1.0, help="0 is greedy (1)")
    parser.add_argument("--top-p", type=float, default=0.95, help="1 keeps all (0.95)")
    parser.add_argument("--top-k", type=int, default=0, help="0 keeps all (0)")
    parser.add_argument("--min-p", type=float, default=0.0, help="0 keeps all (0)")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, help="(1)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed, the same text (0)")


def sampling_of(arguments: argparse.Namespace, **more: Any) -> SamplingParams:
    """The sampling options as parameters.

    Raises:
      RequestError: when one breaks a rule.
    """
    return SamplingParams(
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        min_p=arguments.min_p,
        repetition_penalty=arguments.repetition_penalty,
        **more,
    )


def load_engine(
    checkpoint: str, tokenizer: str | None, settings: EngineSettings
) -> tuple[Engine, Tokenizer]:
    """An engine that holds the model saved at `checkpoint`, and its tokenizer.

    Raises:
      CheckpointError: when there is no model there.
      DataError: when the tokenizer is not found or produces ids that the model does not have.
    """
    own = find_tokenizer(checkpoint, tokenizer)
    config, variables = load_checkpoint(checkpoint)
    if own.vocab_size > config.vocab_size:
        raise DataError(
            f"tokenizer {own.name!r} has {own.vocab_size} ids, the model only "
            f"{config.vocab_size}; name the one it was trained with"
        )
    return Engine(config, variables, own, settings), own


def find_tokenizer(checkpoint: str, tokenizer: str | None) -> Tokenizer:
    """The named tokenizer, or the one that lies with the checkpoint.

    Raises:
      CheckpointError: when there is no model at `checkpoint`.
      DataError: when the tokenizer is not found.
    """
    if tokenizer is None:
        companions = open_checkpoint(checkpoint).companions
        if TOKENIZER_FILE not in companions:
            raise DataError(
                f"{checkpoint} has no tokenizer with it; name one with --tokenizer, "
                "as it was named when the model was trained"
            )
        tokenizer = str(companions[TOKENIZER_FILE])
    return load_tokenizer(tokenizer)


def closing_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens that end an answer: eos and, where there is one, the end of a turn."""
    end_of_turn = tokenizer.end_of_turn_id
    closing = {tokenizer.eos_id} | ({end_of_turn} if end_of_turn is not None else set())
    return tuple(sorted(closing))
