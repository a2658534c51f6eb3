"""Pretraining, and every other stage that predicts the next token of text.

    python -m experiments.pretrain --workdir DIR [--config FILE.py[:NAME]] [--config.a.b=VALUE …]

DIR gets `config.json`, `metrics.jsonl`, `tensorboard/`, `checkpoints/` and, at the end,
`report.html`. The same command again goes on where the run stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jax

from experiments.command_line import DEMO, parse_arguments, run_reporting_errors
from zaya_jax.checkpoint.manager import saved_steps
from zaya_jax.checkpoint.tiers import TieredCheckpoints
from zaya_jax.data.checks import check_data_fits_model
from zaya_jax.data.pipeline import (
    BatchIterator,
    LoadedText,
    load_text,
    training_batches,
    validation_batches,
)
from zaya_jax.parallel.hosts import initialize, is_first_process
from zaya_jax.training import dry_run
from zaya_jax.training.clock import Clock
from zaya_jax.training.finish import (
    continuation,
    finished_step,
    mark_finished,
    validation_summary,
)
from zaya_jax.training.heartbeat import dump_stacks_on_request
from zaya_jax.training.loop import Loop
from zaya_jax.training.placement import choose_placement
from zaya_jax.training.preemption import StopSignal
from zaya_jax.training.provenance import run_metadata
from zaya_jax.training.report import write_report
from zaya_jax.training.resolved import to_plain
from zaya_jax.training.settings import RunConfig
from zaya_jax.training.startup import (
    Resumption,
    base_record,
    find_resumption,
    new_state,
    restored_state,
)
from zaya_jax.training.validation import Validator
from zaya_jax.training.workdir import claimed, make_workdir
from zaya_jax.training.writers import MultiWriter, open_writers


def main(
    argv: Sequence[str],
    *,
    program: str = "experiments.pretrain",
    summary: str = __doc__ or "",
    default_config: str = DEMO,
) -> int:
    """Runs the command line of a stage; returns the exit status."""
    arguments = parse_arguments(
        argv, program=program, summary=summary, default_config=default_config
    )
    if arguments.dry_run:
        return plan(arguments.config, arguments.workdir)
    dump_stacks_on_request()
    initialize(arguments.hosts, os.environ)
    try:
        with StopSignal() as stop:
            return pretrain(arguments.config, arguments.workdir, stop)
    except OSError as error:
        if error.filename is None and error.errno is not None:  # a write to an open file
            raise OSError(error.errno, error.strerror, str(arguments.workdir)) from error
        raise


def pretrain(config: RunConfig, workdir: Path, stop: StopSignal) -> int:
    """Trains to the last step and reports; 128 + signal when a signal stopped it first.

    Raises:
      ConfigError: when another run has the folder, and for settings that do not fit together.
    """
    with claimed(workdir) if is_first_process() else contextlib.nullcontext():
        return train_and_report(config, workdir, stop)


def train_and_report(config: RunConfig, workdir: Path, stop: StopSignal) -> int:
    """The same in a folder that is this run's own."""
    clock = Clock()
    placement = choose_placement(
        config.mesh,
        config.model,
        batch_size=config.data.batch_size // config.train.microbatches,
        sequence_length=config.data.sequence_length,
        offload_moments=config.optimizer.offload_state,
    )
    with TieredCheckpoints(workdir / "checkpoints", config.checkpoint) as checkpoints:
        resumption = find_resumption(config, checkpoints, placement)
        steps = config.train.steps
        if resumption and resumption.step == steps == finished_step(workdir):
            print(f"already finished at step {steps}; see {workdir / 'report.html'}")
            return 0

        text, batches = read_data(config)
        held_out = validation_batches(config.data, text)
        with clock.measure("compile"):
            if resumption is None:
                state = new_state(config, placement)
            else:
                state = restored_state(config, placement, checkpoints, resumption.step, batches)

        # Nothing has been written so far: from here on the run is known to be sound.
        checkpoints.set_aside_after(resumption.step if resumption else -1)
        if is_first_process():
            save_config(config, workdir)
        resume_step = resumption.step if resumption else None
        with open_writers(workdir, config.log, steps, resume_step) as writers:
            record_start(writers, resumption)
            metadata = run_metadata(config) | base_record(state)
            validator = Validator(config, placement, held_out)
            loop = Loop(
                config,
                placement,
                workdir,
                batches,
                validator,
                checkpoints,
                writers,
                stop,
                clock,
                metadata,
            )
            state = loop.train(state)
            if int(state.step) < steps or stop.received is not None:
                name = "sigterm" if stop.received is None else stop.received.name.lower()
                record_event(writers, int(state.step), name, "state saved")
                return stop.exit_status or 128 + signal.SIGTERM  # of another process

    if is_first_process():
        print("\n".join(validation_summary(workdir, held_out)))
        if jax.process_count() == 1:  # elsewhere no process holds the whole model
            print(continuation(config, text.tokenizer, state))
        print(f"report: {write_report(workdir)}")
        mark_finished(workdir, steps)
    return 0


def read_data(config: RunConfig) -> tuple[LoadedText, BatchIterator]:
    """The tokenised data, found fit for the model, and this process' rows of its batches."""
    text = load_text(config.data)
    print("".join(f"{note}\n" for note in text.notes), end="")
    model = config.model
    check_data_fits_model(
        config.data, text.tokenizer, model.vocab_size, model.max_position_embeddings
    )
    batches = training_batches(
        config.data, text, process_index=jax.process_index(), process_count=jax.process_count()
    )
    return text, batches


def plan(config: RunConfig, workdir: Path) -> int:
    """The dry run: prints and saves what the run would be."""
    facts = dry_run.plan(config)
    print(json.dumps(facts["config"], indent=2))
    print(dry_run.describe(facts))
    make_workdir(workdir)
    (workdir / "dry_run.json").write_text(json.dumps(facts, indent=2) + "\n")
    if not saved_steps(workdir / "checkpoints"):  # never over a real run's config
        save_config(config, workdir)
    return 0


def save_config(config: RunConfig, workdir: Path) -> None:
    """Writes the resolved config where the report and people look for it."""
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / "config.json").write_text(json.dumps(to_plain(config), indent=2) + "\n")


def record_start(writers: MultiWriter, resumption: Resumption | None) -> None:
    """Notes how the run began, and which checkpoints were passed over."""
    if resumption is None:
        record_event(writers, 0, "start", "a new run")
        return
    for name, detail in resumption.events:
        record_event(writers, resumption.step, name, detail)


def record_event(writers: MultiWriter, step: int, name: str, detail: str) -> None:
    """Writes one event."""
    writers.write(
        {"kind": "event", "step": step, "time": time.time(), "name": name, "detail": detail}
    )


if __name__ == "__main__":
    run_reporting_errors(lambda: main(sys.argv[1:]))
