"""Filters the problems of an RL stage with the policy it begins with, before the stage or alone.

    python -m experiments.refilter --workdir DIR --config FILE.py:NAME --config.init_from=RUN

A stage whose `RLSetup` has `refilter=RefilterPlan(...)` does this by itself before its first step,
so that every stage of a cascade learns from problems that the stage before has left open. This
command does the same and nothing else: the stage with the same DIR finds it done. DIR gets
`filter_1.jsonl` and so on, a row for every problem that a pass has asked, and `problems.jsonl` with
those that all passes kept. The same command again goes on where it stopped.
"""

from __future__ import annotations

import collections
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.command_line import parse_arguments, run_reporting_errors
from experiments.rl_stage import make_sampler
from experiments.rl_start import DEFAULT_CONFIG, first_variables, load_setup
from zaya_jax.config import ConfigError
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.rl.environments.filtered import FilteredEnvironment
from zaya_jax.rl.environments.protocol import Environment
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.prompts import PromptCodec
from zaya_jax.rl.refilter import candidates, read_kept, run_pass, write_kept
from zaya_jax.rl.setup import RLSetup
from zaya_jax.training.settings import RunConfig
from zaya_jax.training.workdir import claimed

KEPT_FILE = "problems.jsonl"


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    arguments = parse_arguments(
        argv, program="experiments.refilter", summary=__doc__ or "", default_config=DEFAULT_CONFIG
    )
    try:
        setup = load_setup(argv)
        if setup.refilter is None:
            raise ConfigError("this stage has no refilter: set RLSetup(refilter=RefilterPlan(...))")
        if arguments.dry_run:
            print(setup.refilter)
            return 0
        with claimed(arguments.workdir):
            variables = first_variables(arguments.config)
            refiltered(arguments.config, setup, variables, arguments.workdir)
    except RLError as error:
        raise ConfigError(str(error)) from error
    return 0


def refiltered(
    config: RunConfig, setup: RLSetup, variables: dict[str, Any], workdir: Path
) -> RLSetup:
    """The setup with environments that hold only problems worth learning from.

    Environments of which nothing is left are dropped.

    Raises:
      ConfigError: without a trained policy to filter with.
      RLError: when no problem is left.
    """
    if setup.refilter is None:
        return setup
    if not config.init_from:
        raise ConfigError("refilter: needs a trained policy to filter with: set config.init_from")
    environments = {environment.name: environment for environment in setup.environments()}
    path = workdir / KEPT_FILE
    if not path.exists():
        workdir.mkdir(parents=True, exist_ok=True)
        _filter(config, setup, variables, environments, workdir)
    kept: dict[str, list[tuple[int, int]]] = collections.defaultdict(list)
    for source, difficulty, seed in read_kept(path):
        kept[source].append((difficulty, seed))
    left = tuple(
        FilteredEnvironment(one, kept[name]) for name, one in environments.items() if name in kept
    )
    if not left:
        raise RLError(
            f"refilter: no problem is left in {path}: all are too easy or too hard for this policy"
        )
    for name in environments.keys() - kept.keys():
        print(f"refilter: nothing of {name} is left; it is dropped", flush=True)
    names = {environment.name for environment in left}
    shares = {name: share for name, share in setup.shares.items() if name in names}
    return dataclasses.replace(setup, environments=lambda: left, shares=shares)


def _filter(
    config: RunConfig,
    setup: RLSetup,
    variables: dict[str, Any],
    environments: dict[str, Environment],
    workdir: Path,
) -> None:
    """All passes, one after the other."""
    plan = setup.refilter
    assert plan is not None
    tokenizer = load_tokenizer(config.data.tokenizer)
    problems = candidates(plan, environments.values())
    for number, rule in enumerate(plan.passes, start=1):
        codec = PromptCodec(tokenizer, rule.prompt)
        before = len(problems)
        problems = run_pass(
            rule,
            problems,
            environments,
            make_sampler(config, setup, variables, codec.stop_token, rule.most_tokens),
            codec,
            workdir / f"filter_{number}.jsonl",
            batch=plan.batch,
            seed=config.train.seed,
            say=lambda line: print(line, flush=True),
        )
        print(
            f"refilter: pass {number} ({rule.prompt}, at most {rule.most_tokens:,} tokens) kept"
            f" {len(problems):,} of {before:,} problems",
            flush=True,
        )
    write_kept(workdir / KEPT_FILE, problems)


if __name__ == "__main__":
    run_reporting_errors(lambda: main(sys.argv[1:]))
