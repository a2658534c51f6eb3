"""Reinforcement learning: one stage, exactly on-policy or with rollouts and training at once.

    python -m experiments.rl --workdir DIR [--config FILE.py[:NAME]] [--config.a.b=VALUE …]

The config file has `get_config` for the model, the optimiser and the run, as for other stages, and
`get_rl`, which returns the environments and the rules of the stage (`zaya_jax.rl.setup.RLSetup`).
DIR gets `config.json`, `metrics.jsonl`, `rollouts.txt` (a few of every measured step, to be read),
`checkpoints/` and, at the end, `report.html`. The same command again goes on where the run stopped.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.command_line import parse_arguments, run_reporting_errors
from experiments.refilter import refiltered
from experiments.rl_stage import AnyStage, make_stage
from experiments.rl_start import (
    DEFAULT_CONFIG,
    first_variables,
    imitate,
    load_setup,
    trainer_placement,
)
from zaya_jax.checkpoint.settings import Tier
from zaya_jax.checkpoint.tiers import TieredCheckpoints
from zaya_jax.config import ConfigError
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.evaluation.statistics import bootstrap_interval
from zaya_jax.rl.curriculum.before_stage import calibrate
from zaya_jax.rl.dry_run import describe, plan
from zaya_jax.rl.errors import NothingToLearnError, RLError
from zaya_jax.rl.progress import ALL_SOURCES, DIFFICULTY, rl_terminal_writer
from zaya_jax.rl.report import write_report
from zaya_jax.rl.setup import RLSetup
from zaya_jax.rl.trainer import PolicyState, PolicyTrainer
from zaya_jax.training.metrics_file import JsonlWriter
from zaya_jax.training.placement import Placement
from zaya_jax.training.resolved import to_plain
from zaya_jax.training.settings import RunConfig
from zaya_jax.training.startup import Resumption, find_resumption
from zaya_jax.training.workdir import claimed
from zaya_jax.training.writers import MultiWriter

SHOWN_ROLLOUTS = 4  # written out at every measurement


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    arguments = parse_arguments(
        argv, program="experiments.rl", summary=__doc__ or "", default_config=DEFAULT_CONFIG
    )
    try:
        setup = load_setup(argv)
        if arguments.dry_run:
            print(describe(plan(arguments.config, setup)))
            return 0
        placement = trainer_placement(arguments.config, setup)
        return reinforce(arguments.config, setup, arguments.workdir, placement)
    except RLError as error:
        raise ConfigError(str(error)) from error


def reinforce(config: RunConfig, setup: RLSetup, workdir: Path, placement: Placement) -> int:
    """Trains to the last step, measuring and saving on the way."""
    tokenizer = load_tokenizer(config.data.tokenizer)
    with (
        claimed(workdir),
        TieredCheckpoints(workdir / "checkpoints", config.checkpoint) as checkpoints,
    ):
        resumption = find_resumption(config, checkpoints)
        trainer = PolicyTrainer(
            config.model, config.optimizer, setup.loss, config.train.steps, placement
        )
        variables = first_variables(config)
        setup = refiltered(config, setup, variables, workdir)
        stage = make_stage(config, setup, trainer, variables, tokenizer)
        (workdir / "config.json").write_text(json.dumps(to_plain(config), indent=2) + "\n")
        checkpoints.set_aside_after(resumption.step if resumption else -1)
        with open_writer(config, workdir, resumption) as writer, contextlib.closing(stage):
            if resumption is None:
                variables = imitate(config, setup, variables, tokenizer, writer)
                state = trainer.init(variables)
                stage.sampler.load_weights(variables)
                start_curriculum(setup, stage, config.train.seed, workdir, writer)
                measure(setup, stage, 0, workdir, writer)
                save(config, stage, state, checkpoints, Tier.DURABLE)
            else:
                state = restored(stage, trainer.init(variables), checkpoints, resumption.step)
            last = run(config, setup, stage, state, workdir, writer, checkpoints)
    if last:
        print(f"wrote {write_report(workdir)}", flush=True)
    return 0


def open_writer(config: RunConfig, workdir: Path, resumption: Resumption | None) -> MultiWriter:
    """`metrics.jsonl` and the terminal."""
    jsonl = JsonlWriter(workdir, resumption.step if resumption else None)
    first = resumption.step if resumption else 0
    return MultiWriter([jsonl, rl_terminal_writer(config.train.steps, first)])


def run(
    config: RunConfig,
    setup: RLSetup,
    stage: AnyStage,
    state: PolicyState,
    workdir: Path,
    writer: MultiWriter,
    checkpoints: TieredCheckpoints,
) -> int:
    """The steps that are left, or fewer, when all that is drawn is solved; returns the last one."""
    steps = config.train.steps
    saved, measured = int(state.step), 0
    while (step := int(state.step) + 1) <= steps:
        try:
            state, metrics = stage.step(state)
        except NothingToLearnError as error:
            if not error.is_solved:
                raise
            print(f"ending after step {step - 1}, nothing is left to learn: {error}", flush=True)
            if measured != step - 1:
                measure(setup, stage, step - 1, workdir, writer)
            if saved != step - 1:
                save(config, stage, state, checkpoints, Tier.DURABLE)
            return step - 1
        difficulties = stage.maker.scheduler.progress.items()
        metrics |= {DIFFICULTY + name: at.difficulty for name, at in difficulties}
        writer.write({"kind": "train", "step": step, "time": time.time(), **metrics})
        if step % setup.evaluation_interval == 0 or step == steps:
            measure(setup, stage, step, workdir, writer)
            measured = step
        tier = config.checkpoint.tier_at(step, is_last=step == steps)
        if tier:
            save(config, stage, state, checkpoints, tier)
            saved = step
    return steps


def start_curriculum(
    setup: RLSetup, stage: AnyStage, seed: int, workdir: Path, writer: MultiWriter
) -> None:
    """Environments start where calibration puts them, if the stage has one."""
    if setup.calibration is None:
        return
    path = workdir / "calibration.json"
    found = calibrate(
        setup.calibration,
        stage.maker,
        stage.sampler,
        path,
        seed=seed,
        say=lambda line: print(line, flush=True),
    )
    stage.maker.scheduler.start_at({name: one.difficulty for name, one in found.items()})
    for name, one in found.items():
        detail = (
            f"{name} starts at difficulty {one.difficulty}, expected to be solved in "
            f"{one.solve_rate:.0%}, after {one.groups} groups"
        )
        event = {"kind": "event", "step": 0, "time": time.time(), "name": "calibration"}
        writer.write({**event, **one._asdict(), "source": name, "detail": detail})
        print(f"calibration: {detail}", flush=True)


def measure(setup: RLSetup, stage: AnyStage, step: int, workdir: Path, writer: MultiWriter) -> None:
    """Solve rates on held-out problems, and a few rollouts to read."""
    difficulty = setup.evaluation_difficulty
    if difficulty is None:
        difficulty = setup.difficulty
    measured = stage.held_out_rewards(setup.evaluation_problems, difficulty=difficulty)
    if len(measured) > 1:
        measured = {**measured, ALL_SOURCES: np.concatenate(list(measured.values()))}
    for source, rewards in measured.items():
        low, high = bootstrap_interval(rewards)
        record = {"kind": "validation", "step": step, "time": time.time(), "source": source}
        rate = {"solve_rate": float(rewards.mean()), "low": low, "high": high}
        writer.write({**record, **rate, "problems": len(rewards)})
    if measured:
        listed = ", ".join(f"{source} {r.mean():.3f}" for source, r in measured.items())
        print(f"step {step}: solved of held-out problems: {listed}", flush=True)
    shown = [(g.problem, r) for g in stage.last_groups[:SHOWN_ROLLOUTS] for r in g.rollouts[:1]]
    with (workdir / "rollouts.txt").open("a", encoding="utf-8") as file:
        for problem, rollout in shown:
            text = stage.maker.text_of(rollout.tokens)
            file.write(
                f"--- step {step}, {problem.source}, difficulty {problem.difficulty}, reward "
                f"{rollout.reward:g} ({rollout.reason})\n{problem.prompt}\n>>> {text}\n"
            )


def save(
    config: RunConfig,
    stage: AnyStage,
    state: PolicyState,
    checkpoints: TieredCheckpoints,
    tier: Tier,
) -> None:
    """Policy, optimiser, curriculum and running maxima."""
    checkpoints.save(
        int(state.step),
        variables=state.variables,
        training={"step": state.step, "optimizer_state": state.optimizer_state},
        data=stage.get_state(),
        metadata={"config": to_plain(config)},
        tier=tier,
    )


def restored(
    stage: AnyStage, template: PolicyState, checkpoints: TieredCheckpoints, step: int
) -> PolicyState:
    """The state of a checkpoint, in the policy, the sampler and the stage."""
    training = {"step": template.step, "optimizer_state": template.optimizer_state}
    saved = checkpoints.restore(step, template.variables, training)
    state = PolicyState(
        step=saved.training["step"],
        params=saved.variables["params"],
        optimizer_state=saved.training["optimizer_state"],
        balancing=saved.variables["balancing"],
    )
    stage.set_state(saved.data, state)
    print(f"going on from the checkpoint of step {step}", flush=True)
    return state


if __name__ == "__main__":
    run_reporting_errors(lambda: main(sys.argv[1:]))
