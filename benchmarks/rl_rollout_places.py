"""Rollouts in threads of the trainer's process against rollouts in Ray actors, on one machine.

    python benchmarks/rl_rollout_places.py [--repeats 5] [--updates 20] [--output FILE.json]

The stage of `experiments/configs/rl_small.py` with one engine in a thread, three in threads and
three in Ray actors, which leave scoring to the trainer's process or score themselves, from the same
imitating policy: all stages are built and warmed up, then take turns of so many updates while the
others stand still. Printed are medians over the turns, without the first updates of each, which use
up what the buffer held.

Two workloads: the tasks as they are, whose verifier compares two strings, and with a verifier that
takes `--verifier-milliseconds` of Python for each response, as one that parses and compares would.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

from experiments.configs import rl_small
from experiments.rl_stage import make_stage
from experiments.rl_start import first_variables, imitate, trainer_placement
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.rl.environments.practice import TASKS, PracticeEnvironment
from zaya_jax.rl.environments.protocol import Problem, Score
from zaya_jax.rl.pipeline import PipelineStage, WorkerPlace
from zaya_jax.rl.ray_engine import ActorResources
from zaya_jax.rl.setup import RLSetup
from zaya_jax.rl.trainer import PolicyState, PolicyTrainer
from zaya_jax.training.config_file import to_run_config
from zaya_jax.training.settings import RunConfig
from zaya_jax.training.writers import MultiWriter

PLACES = ("threads 1", "threads 3", "ray 3", "ray 3, scoring")
_SCORING = ", scoring"  # verifiers run in the actors
_USED_UP = 4  # first updates of a turn


class BusyEnvironment(PracticeEnvironment):
    """A practice task whose verifier computes in Python for a while."""

    def __init__(self, task: str, milliseconds: float) -> None:
        super().__init__(task)
        self._seconds = milliseconds / 1000

    def score(self, problem: Problem, answer: str) -> Score:
        """As the task's, later by so much CPU time of this thread."""
        end = time.thread_time() + self._seconds
        while time.thread_time() < end:
            sum(range(200))
        return super().score(problem, answer)


@dataclasses.dataclass
class Side:
    """One of the compared stages."""

    stage: PipelineStage
    state: PolicyState
    turns: list[dict[str, float]] = dataclasses.field(default_factory=list)

    def turn(self, updates: int) -> None:
        """So many updates; figures of all but the first."""
        for _ in range(_USED_UP):
            self.state, _ = self.stage.step(self.state)
        before, rewards, waited = _Reading.of(self.stage), [], 0.0
        for _ in range(updates):
            self.state, metrics = self.stage.step(self.state)
            rewards.append(metrics["reward"])
            waited += metrics["sample_seconds"]
        after = _Reading.of(self.stage)
        seconds = after.clock - before.clock
        workers = len(self.stage.workers)
        self.turns.append(
            {
                "updates/s": updates / seconds,
                "rollout tokens/s": (after.tokens - before.tokens) / seconds,
                "trainer idle": waited / seconds,
                "workers idle": (after.idle - before.idle) / seconds / workers,
                "trainer CPU s/update": (after.trainer - before.trainer) / updates,
                "actors CPU s/update": (after.actors - before.actors) / updates,
                "Ray CPU s/update": (after.ray - before.ray) / updates,
                "reward": sum(rewards) / len(rewards),
            }
        )


@dataclasses.dataclass(frozen=True)
class _Reading:
    clock: float
    tokens: int
    idle: float
    trainer: float  # CPU seconds of this process
    actors: float  # of the processes with engines
    ray: float  # of all others that this process began

    @classmethod
    def of(cls, stage: PipelineStage) -> _Reading:
        counts = [worker.counts for worker in stage.workers]
        processors = _descendants()
        actors = sum(seconds for name, seconds in processors if name.startswith("ray::"))
        return cls(
            time.monotonic(),
            sum(one.tokens for one in counts),
            sum(one.idle_seconds for one in counts),
            time.process_time(),
            actors,
            sum(seconds for _, seconds in processors) - actors,
        )


def _descendants() -> list[tuple[str, float]]:
    """Name and CPU seconds of every process that this one or one of its own began."""
    parents, found = dict[int, int](), dict[int, tuple[str, float]]()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
                fields = rest.split()
                ticks = int(fields[11]) + int(fields[12])
                parents[int(folder.name)] = int(fields[1])
                found[int(folder.name)] = (name, ticks / os.sysconf("SC_CLK_TCK"))

    def is_ours(process: int) -> bool:
        while process in parents and process != os.getpid():
            process = parents[process]
        return process == os.getpid()

    return [found[one] for one in found if one != os.getpid() and is_ours(one)]


def setup_of(place: str, milliseconds: float) -> RLSetup:
    """The stage's setup with that place and verifier."""
    kind, workers = place.removesuffix(_SCORING).split()
    setup = rl_small.get_rl("pipeline" if workers == "1" else "ray")
    assert setup.pipeline is not None
    pipeline = dataclasses.replace(
        setup.pipeline,
        workers=int(workers),
        place=WorkerPlace[kind.removesuffix("s").upper()],
        score_in_actors=place.endswith(_SCORING),
        resources=ActorResources(cpus=0.3),  # those of all stages are there at once
    )
    if milliseconds:
        setup = dataclasses.replace(
            setup,
            environments=lambda: tuple(BusyEnvironment(task, milliseconds) for task in TASKS),
        )
    return dataclasses.replace(setup, pipeline=pipeline)


def start(
    config: RunConfig, places: list[str], milliseconds: float, variables: dict[str, Any]
) -> dict[str, Side]:
    """Stages that have trained a little."""
    tokenizer, sides = load_tokenizer(config.data.tokenizer), dict[str, Side]()
    for place in places:
        setup = setup_of(place, milliseconds)
        placement = trainer_placement(config, setup)
        trainer = PolicyTrainer(config.model, config.optimizer, setup.loss, 10_000, placement)
        stage = make_stage(config, setup, trainer, variables, tokenizer)
        assert isinstance(stage, PipelineStage)
        sides[place] = Side(stage, trainer.init(variables))
        begun = time.monotonic()
        for _ in range(2):
            sides[place].state, _ = stage.step(sides[place].state)
        print(f"{place}: first 2 updates after {time.monotonic() - begun:.1f} s", flush=True)
    return sides


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5, help="turns of each (5)")
    parser.add_argument("--updates", type=int, default=20, help="measured in a turn (20)")
    parser.add_argument("--places", nargs="*", default=list(PLACES), help="of what to compare")
    parser.add_argument("--verifier-milliseconds", type=float, nargs="*", default=[0.0, 2.0])
    parser.add_argument("--output", type=Path, help="also as JSON, to this file")
    options = parser.parse_args()
    config = to_run_config(rl_small.get_config())
    tokenizer = load_tokenizer(config.data.tokenizer)
    variables = imitate(
        config, rl_small.get_rl(), first_variables(config), tokenizer, MultiWriter([])
    )
    record: dict[str, Any] = {"cores": os.cpu_count(), "updates": options.updates}
    for milliseconds in options.verifier_milliseconds:
        sides = start(config, options.places, milliseconds, variables)
        for _ in range(options.repeats):
            for side in sides.values():
                side.turn(options.updates)
        for side in sides.values():
            side.stage.close()
        print(f"\nverifier of {milliseconds:g} ms, medians of {options.repeats} turns")
        for place, side in sides.items():
            middle = {name: median(turn[name] for turn in side.turns) for name in side.turns[0]}
            print(f"{place:14}" + "".join(f"  {name} {v:.3g}" for name, v in middle.items()))
        record[f"{milliseconds:g} ms"] = {place: side.turns for place, side in sides.items()}
    if options.output is not None:
        options.output.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
