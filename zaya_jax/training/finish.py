"""What a run says when it is done, and the mark that it is done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from zaya_jax.data.pipeline import Batch, unigram_entropy
from zaya_jax.data.tokenizer import Tokenizer
from zaya_jax.inference.sample import sample_text
from zaya_jax.training.metrics_file import read_metrics
from zaya_jax.training.settings import RunConfig
from zaya_jax.training.state import TrainState, model_params

_MARK = "finished.json"


def finished_step(workdir: Path) -> int | None:
    """The step at which a run in this folder ended, or None."""
    path = workdir / _MARK
    return json.loads(path.read_text())["step"] if path.is_file() else None


def mark_finished(workdir: Path, step: int) -> None:
    """Notes that everything up to and after the last step was done."""
    temporary = workdir / (_MARK + ".tmp")
    temporary.write_text(json.dumps({"step": step}) + "\n")
    temporary.rename(workdir / _MARK)


def validation_summary(workdir: Path, held_out: dict[str, list[Batch]]) -> list[str]:
    """One line per source: first and last loss, and what knowing only token counts would give."""
    lines = []
    records = [record for record in read_metrics(workdir) if record["kind"] == "validation"]
    for source, batches in held_out.items():
        losses = [record["loss"] for record in records if record["source"] == source]
        if losses:
            lines.append(
                f"validation loss on {source}: {losses[0]:.3f} -> {losses[-1]:.3f} nats per token; "
                f"unigram entropy of the text: {unigram_entropy(batches):.3f}"
            )
    return lines


def continuation(config: RunConfig, tokenizer: Tokenizer, state: TrainState) -> str:
    """The prompt of the config and the model's continuation; "" when no sample is asked for."""
    train = config.train
    room = config.model.max_position_embeddings - 1 - len(tokenizer.encode(train.sample_prompt))
    length = min(train.sample_tokens, room)
    if length <= 0:
        return ""
    arguments: dict[str, Any] = {"max_tokens": length, "rng": state.rng}
    params = model_params(config, state.params, state.base)
    variables = {"params": params, "balancing": state.balancing}
    return train.sample_prompt + sample_text(
        config.model, variables, tokenizer, train.sample_prompt, **arguments
    )
