"""What the commands that write text on the terminal share."""

from __future__ import annotations

import argparse

from zaya_jax.data.tokenizer import Tokenizer
from zaya_jax.inference.command import (
    Parser,
    add_model_options,
    add_sampling_options,
    load_engine,
    sampling_of,
)
from zaya_jax.inference.engine import Engine
from zaya_jax.inference.settings import EngineSettings


def writing_parser(name: str, description: str | None, *, max_tokens: int) -> Parser:
    """A parser for `python -m zaya_jax.inference.NAME` with the options of model and sampling."""
    parser = Parser(prog=f"python -m zaya_jax.inference.{name}", description=description)
    add_model_options(parser)
    add_sampling_options(parser, max_tokens=max_tokens)
    return parser


def open_engine(
    arguments: argparse.Namespace, *, slots: int, prefix_cache: bool
) -> tuple[Engine, Tokenizer]:
    """The engine that the options ask for, and its tokenizer.

    Raises:
      RequestError: for a wrong sampling option, before the model is read.
      CheckpointError: see `load_engine`.
      DataError: likewise.
    """
    sampling_of(arguments)
    parts = arguments.mesh.get("mesh_data", 1)
    settings = EngineSettings(
        slots=-(-slots // max(parts, 1)) * max(parts, 1),  # as many in every part
        cache_tokens=arguments.cache_tokens,
        prefix_cache=prefix_cache,
        **arguments.mesh,
    )
    return load_engine(arguments.checkpoint, arguments.tokenizer, settings)
