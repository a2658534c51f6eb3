"""How far trainer and sampler drift apart with router replay and without it, as a plot.

    python -m experiments.replay_mismatch --workdir DIR [--steps N] [--seed N]

The small policy of `rl_small.py` imitates its teacher, then learns twice from the same start: its
rollouts come from a sampler with bfloat16 activations, the trainer's are float32, and the router's
choices are replayed in one run and made anew in the other. DIR gets `replay_mismatch.svg` (KL
between sampler and trainer) and `replay_mismatch.json` (all figures). No group is filtered out, so
that both runs see as many rollouts.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.ablation.page import svg_file
from experiments.ablation.results import write_whole
from experiments.command_line import run_reporting_errors
from experiments.configs import rl_small
from experiments.rl_stage import make_stage
from experiments.rl_start import first_variables, imitate, trainer_placement
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.rl.dynamic_sampling import GroupFilter
from zaya_jax.rl.setup import RLSetup
from zaya_jax.rl.trainer import PolicyTrainer
from zaya_jax.training.config_file import to_run_config
from zaya_jax.training.metrics_file import JsonlWriter
from zaya_jax.training.report_plots import LinePlot, Series
from zaya_jax.training.settings import RunConfig
from zaya_jax.training.workdir import claimed, folder_option

IMITATION_STEPS = 150
ARMS = {"replay on": True, "replay off": False}
FIGURES = ("kl_k3", "flipped_routes", "ratio_min", "ratio_max", "blocked", "reward")

Curves = dict[str, dict[str, list[float]]]  # arm -> figure -> value of each step


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.replay_mismatch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--workdir", required=True, type=folder_option, help="folder to write into")
    parser.add_argument("--steps", type=int, default=40, help="updates of each run")
    parser.add_argument("--seed", type=int, default=0, help="of weights, problems and samples")
    options = parser.parse_args(argv)
    config = to_run_config(rl_small.get_config())
    train = dataclasses.replace(config.train, steps=options.steps, seed=options.seed)
    config = dataclasses.replace(config, train=train)
    with claimed(options.workdir):
        curves = compare(config, rl_small.get_rl(), options.workdir)
        write_whole(options.workdir / "replay_mismatch.json", json.dumps(curves, indent=1) + "\n")
        write_whole(options.workdir / "replay_mismatch.svg", svg_file(mismatch_plot(curves)))
    print(summary(curves))
    return 0


def compare(config: RunConfig, setup: RLSetup, workdir: Path) -> Curves:
    """Both runs from one policy."""
    assert setup.cold_start is not None
    setup = dataclasses.replace(
        setup,
        sampler_dtype="bfloat16",
        cold_start=dataclasses.replace(setup.cold_start, steps=IMITATION_STEPS),
    )
    tokenizer = load_tokenizer(config.data.tokenizer)
    writer = JsonlWriter(workdir)
    variables = imitate(config, setup, first_variables(config), tokenizer, writer)
    writer.close()
    return {arm: run(config, setup, variables, replay) for arm, replay in ARMS.items()}


def run(
    config: RunConfig, setup: RLSetup, variables: dict[str, Any], replay: bool
) -> dict[str, list[float]]:
    """The figures of every step of one run."""
    rules = dataclasses.replace(
        setup.stage, router_replay=replay, group_filter=GroupFilter.NONE, most_rounds=1
    )
    setup = dataclasses.replace(setup, stage=rules)
    placement = trainer_placement(config, setup)
    trainer = PolicyTrainer(
        config.model, config.optimizer, setup.loss, config.train.steps, placement
    )
    stage = make_stage(config, setup, trainer, variables, load_tokenizer(config.data.tokenizer))
    state = trainer.init(variables)
    curves: dict[str, list[float]] = {name: [] for name in FIGURES}
    for _ in range(config.train.steps):
        state, metrics = stage.step(state)
        for name, values in curves.items():
            values.append(float(metrics[name]))
    stage.close()
    return curves


def mismatch_plot(curves: Curves) -> LinePlot:
    """KL of both runs over the steps."""
    steps = [float(i) for i in range(1, 1 + len(next(iter(curves.values()))["kl_k3"]))]
    return LinePlot(
        "KL between sampler and trainer",
        "Estimator k3, nats per response token; bfloat16 sampler, float32 trainer.",
        steps,
        [Series(arm, own["kl_k3"], f"s{i}") for i, (arm, own) in enumerate(curves.items(), 1)],
    )


def summary(curves: Curves) -> str:
    """One line for each run."""
    lines = []
    for arm, own in curves.items():
        kl, low, high = (np.array(own[name]) for name in ("kl_k3", "ratio_min", "ratio_max"))
        line = (
            f"{arm}: KL {kl.mean():.2e} nats a token (largest step {kl.max():.2e}), ratio"
            f" {low.min():.3f} to {high.max():.3f}"
        )
        if ARMS[arm]:  # without replay nothing is pinned that could differ
            flips = np.mean(own["flipped_routes"])
            line += f"; live routing would change {flips:.3%} of the recorded choices"
        lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    run_reporting_errors(lambda: main(sys.argv[1:]))
