"""What an RL run begins with: its setup, the trainer's devices, and the first weights."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from zaya_jax.checkpoint.load import load_checkpoint
from zaya_jax.config import ConfigError, architecture_differences
from zaya_jax.data.tokenizer import Tokenizer
from zaya_jax.model.transformer import Transformer
from zaya_jax.rl.cold_start import cold_start
from zaya_jax.rl.dry_run import ROW_NAMES
from zaya_jax.rl.prompts import PromptCodec
from zaya_jax.rl.setup import RLSetup
from zaya_jax.training.config_file import call_config_file
from zaya_jax.training.metrics_file import plain_record
from zaya_jax.training.placement import Placement, choose_placement
from zaya_jax.training.settings import RunConfig
from zaya_jax.training.writers import Writer

DEFAULT_CONFIG = str(Path(__file__).parent / "configs" / "rl_small.py")


def load_setup(argv: Sequence[str]) -> RLSetup:
    """What `get_rl` of the config file returns; the file was run once for its `get_config`.

    Raises:
      ConfigError: when there is no such function, or it fails, or returns something else.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", default=DEFAULT_CONFIG)
    config = parser.parse_known_args(argv)[0].config
    setup = call_config_file(config, "get_rl", ": is it an RL config?")
    if not isinstance(setup, RLSetup):
        raise ConfigError(f"config file {config!r}: get_rl returned {type(setup).__name__}")
    return setup


def trainer_placement(config: RunConfig, setup: RLSetup) -> Placement:
    """Devices of the trainer: all that are not the workers' own.

    Raises:
      ConfigError: when mesh, model and the stage's rows do not fit together.
    """
    stage, split = setup.stage, setup.split(jax.devices())
    return choose_placement(
        config.mesh,
        config.model,
        batch_size=stage.rows_per_microbatch,
        sequence_length=stage.row_length,
        names=ROW_NAMES,
        devices=None if split is None else split.trainer,
        offload_moments=config.optimizer.offload_state,
    )


def first_variables(config: RunConfig) -> dict[str, Any]:
    """Parameters of `init_from`, or new ones.

    Raises:
      ConfigError: when the checkpoint has another architecture.
    """
    if config.init_from:
        saved, variables = load_checkpoint(Path(config.init_from))
        differences = architecture_differences(saved, config.model)
        if differences:
            raise ConfigError(
                f"init_from={config.init_from}: another architecture: {', '.join(differences)}"
            )
        return variables
    tokens = np.zeros((1, 2), np.int32)
    model = Transformer(config.model)
    made: Any = jax.jit(lambda key: model.init(key, tokens))(jax.random.key(config.train.seed))
    return {"params": made["params"], "balancing": made["balancing"]}


def imitate(
    config: RunConfig,
    setup: RLSetup,
    variables: dict[str, Any],
    tokenizer: Tokenizer,
    writer: Writer,
) -> dict[str, Any]:
    """The cold start, where the stage has one and no checkpoint to begin with."""
    if setup.cold_start is None or config.init_from:
        return variables
    start, codec = time.monotonic(), PromptCodec(tokenizer, setup.stage.prompt)
    variables, losses = cold_start(
        setup.cold_start,
        config.model,
        variables,
        encode=codec.encode,
        encode_response=lambda text: [*tokenizer.encode(text), codec.stop_token],
        row_length=setup.stage.row_length,
        rows=setup.stage.rows_per_microbatch,
        seed=config.train.seed,
    )
    seconds = time.monotonic() - start
    detail = f"{len(losses)} updates, loss {losses[0]:.3f} -> {losses[-1]:.3f}, {seconds:.0f} s"
    print(f"imitation: {detail}", flush=True)
    event = {"kind": "event", "step": 0, "time": time.time(), "name": "imitation", "detail": detail}
    writer.write(plain_record(event))
    return variables
