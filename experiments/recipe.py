"""The small recipe in one command: pretrain, midtrain, SFT, and what each stage brought.

    python -m experiments.recipe --workdir DIR

After every stage the same held-out text and problems are measured. The same command again resumes.
Stages and sizes: experiments/configs/small.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.command_line import run_reporting_errors
from experiments.configs import small
from experiments.pretrain import pretrain
from experiments.recipe_evaluation import exact_answers, held_out_loss, held_out_problems
from zaya_jax.checkpoint.load import load_checkpoint
from zaya_jax.data.pipeline import load_text, validation_batches
from zaya_jax.data.tokenizer import tokenizer_of
from zaya_jax.training.config_file import to_run_config
from zaya_jax.training.preemption import StopSignal
from zaya_jax.training.settings import RunConfig
from zaya_jax.training.workdir import claimed, folder_option

STAGES = ("pretrain", "midtrain", "sft")
PROBLEMS = 48  # held-out problems that are answered
ANSWER_TOKENS = 36  # longest reasoning and answer


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.recipe",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--workdir", required=True, type=folder_option, help="folder for the three runs"
    )
    workdir = parser.parse_args(argv).workdir
    with claimed(workdir):
        return run(workdir)


def run(workdir: Path) -> int:
    """The stages one after the other; the first failure ends it."""
    configs = {stage: to_run_config(small.get_config(stage)) for stage in STAGES}
    rows: list[dict[str, float | str]] = []
    previous = ""
    for stage in STAGES:
        start = time.monotonic()
        print(f"==> {stage}", flush=True)
        config = dataclasses.replace(configs[stage], init_from=previous)
        with StopSignal() as stop:
            status = pretrain(config, workdir / stage, stop)
        if status:
            return status
        previous = str(workdir / stage)
        seconds = time.monotonic() - start
        rows.append({"stage": stage, "seconds": seconds, **measure(previous, configs["sft"])})
        print(table(rows[-1:]), flush=True)
    print("\n" + table(rows))
    (workdir / "recipe.json").write_text(json.dumps(rows, indent=2) + "\n")
    return 0


def measure(checkpoint: str, reference: RunConfig) -> dict[str, float]:
    """Held-out losses and exact answers of a checkpoint, on the last stage's held-out data."""
    saved_model, variables = load_checkpoint(checkpoint)
    model = saved_model.replace(max_position_embeddings=reference.model.max_position_embeddings)
    tokenizer = tokenizer_of(reference.data)
    data = dataclasses.replace(reference.data, sequence_length=256, batch_size=8)
    losses = [
        held_out_loss(model, variables, batches)
        for batches in validation_batches(data, load_text(data)).values()
    ]
    problems = held_out_problems(small.PROBLEMS, data, tokenizer, PROBLEMS)
    right = exact_answers(model, variables, tokenizer, problems, ANSWER_TOKENS)
    return {
        "loss on problems": losses[0],
        "loss on text": losses[1],
        "exact answers": sum(right) / len(right),
    }


def table(rows: Sequence[dict[str, float | str]]) -> str:
    """The results for people."""
    lines = [f"{'stage':<10}{'loss on problems':>18}{'loss on text':>14}{'exact answers':>15}"]
    lines += [
        f"{row['stage']:<10}{row['loss on problems']:>18.3f}{row['loss on text']:>14.3f}"
        f"{row['exact answers']:>14.1%} "
        for row in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    run_reporting_errors(lambda: main(sys.argv[1:]))
