"""A whole stage in small: on-policy, resumable, nothing trained on broken groups."""

from __future__ import annotations

import dataclasses
import json
import threading
from typing import Any

import jax
import numpy as np
import pytest

from tests.rl.tiny_policy import MODEL, ONE_DEVICE, variables
from zaya_jax.optimizer.settings import OptimizerConfig
from zaya_jax.rl.curriculum.scheduler import OnlineScheduler
from zaya_jax.rl.environments.practice import TASKS, PracticeEnvironment
from zaya_jax.rl.environments.protocol import BrokenEnvironmentError, Problem, Score
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.group_maker import GroupMaker, shuffled
from zaya_jax.rl.learner import Learner
from zaya_jax.rl.length_reward import LengthRewardConfig
from zaya_jax.rl.losses import PolicyLossConfig
from zaya_jax.rl.prompts import PromptStyle
from zaya_jax.rl.rewards import RewardConfig
from zaya_jax.rl.sampler import ForwardSampler
from zaya_jax.rl.stage import Stage
from zaya_jax.rl.stage_config import StageConfig
from zaya_jax.rl.trainer import PolicyState, PolicyTrainer

STOP = 3
# Metrics that follow the clock.
CLOCK = {
    "sample_seconds",
    "train_seconds",
    "rollout_tokens_per_second",
    "trained_tokens_per_second",
    "trainer_idle_share",
    "workers_idle_share",
}
CONFIG = StageConfig(
    prompts=4,
    group_size=4,
    row_length=16,
    rows_per_microbatch=16,
    norm=6,
    most_rounds=6,
    prompt=PromptStyle.PLAIN,
    rewards=RewardConfig(length=LengthRewardConfig(coefficient=0.0)),
)
OPTIMIZER = OptimizerConfig(
    schedule="constant", peak_learning_rate=1e-2, warmup_steps=0, weight_decay=0.0
)


class Parity:
    """Worth 1 when the first token is even: a random policy is right half of the time."""

    name, hardest = "parity", None

    def sample(self, difficulty: int, seed: int) -> Problem:
        return Problem(self.name, difficulty, seed, "ab"[seed % 2], {})

    def score(self, problem: Problem, answer: str) -> Score:
        return Score(float(int(answer.split()[0]) % 2 == 0), "first token")


class Failing(Parity):
    """Its verifier fails for half of the problems, and sampling for some others."""

    def sample(self, difficulty: int, seed: int) -> Problem:
        if seed % 5 == 0:
            raise BrokenEnvironmentError("parity: no such problem")
        return super().sample(difficulty, seed)

    def score(self, problem: Problem, answer: str) -> Score:
        if problem.prompt == "a":
            raise BrokenEnvironmentError("parity: the reward server returned garbage")
        return super().score(problem, answer)


def stage(
    environment: Any = None, held_out: tuple[Any, ...] = (), **changes: Any
) -> tuple[Stage, PolicyState]:
    environment = environment or Parity()
    trainer = PolicyTrainer(MODEL, OPTIMIZER, PolicyLossConfig(), 100, ONE_DEVICE)
    sampler = ForwardSampler(
        MODEL, variables(), stop_token=STOP, most_prompt_tokens=4, most_tokens=6
    )
    config = dataclasses.replace(CONFIG, **changes)
    maker = GroupMaker(
        config,
        [environment],
        OnlineScheduler({"parity": (0, 0)}, seed=0),
        encode=lambda text: [1, *(ord(c) % 40 for c in text)],
        decode=lambda ids: " ".join(map(str, ids)),
        held_out=held_out,
    )
    made = Stage(maker, Learner(config, trainer), sampler)
    return made, trainer.init(variables())


def test_the_first_step_is_on_policy_and_learning_raises_the_reward() -> None:
    made, state = stage()
    rewards = []
    for _ in range(12):
        state, metrics = made.step(state)
        rewards.append(metrics["reward"])
        assert metrics["ratio_max"] == pytest.approx(1, abs=1e-4)
        assert metrics["ratio_min"] == pytest.approx(1, abs=1e-4)
        assert (metrics["blocked"], metrics["flipped_routes"]) == (0, 0)
        assert metrics["groups_kept"] <= 4
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.2
    assert made.sampler.version == 12


def test_a_restart_goes_on_with_the_same_rewards() -> None:
    whole, state = stage()
    for _ in range(2):
        state, _ = whole.step(state)
    saved = json.loads(json.dumps(whole.get_state()))
    restored, _ = stage()
    restored.set_state(saved, state)
    other = state
    for _ in range(2):
        state, first = whole.step(state)
        other, second = restored.step(other)
        assert {k: v for k, v in first.items() if k not in CLOCK} == {
            k: v for k, v in second.items() if k not in CLOCK
        }
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_nothing_is_trained_on_broken_groups() -> None:
    made, state = stage(Failing())
    _, metrics = made.step(state)
    assert metrics["groups_kept"] > 0
    assert {group.problem.prompt for group in made.last_groups} == {"b"}
    assert not any(rollout.broken for g in made.last_groups for rollout in g.rollouts)


def test_a_stage_with_every_group_filtered_stops_with_a_reason() -> None:
    class Never(Parity):
        def score(self, problem: Problem, answer: str) -> Score:
            return Score(0.0, "never")

    made, state = stage(Never(), most_rounds=2)
    with pytest.raises(RLError, match="all 8 groups of 2 rounds were filtered out"):
        made.step(state)


class Hanging(Parity):
    """Its verifier never comes back from answers to one of its two problems."""

    def score(self, problem: Problem, answer: str) -> Score:
        if problem.prompt == "a":
            threading.Event().wait()
        return super().score(problem, answer)


def test_a_verifier_that_hangs_costs_its_groups() -> None:
    made, state = stage(Hanging(), score_seconds=0.3)
    _, metrics = made.step(state)
    assert metrics["groups_kept"] > 0
    assert {group.problem.prompt for group in made.last_groups} == {"b"}


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (
            "score",
            "no group was whole; the last: a verifier failed: parity: the verifier raised Key",
        ),
        ("sample", r"no group was whole; the last: parity: sample\(0, \d+\) raised KeyError: 'x'"),
        ("hang", "the last: a verifier failed: parity: the verifier took longer than 0.01 s"),
    ],
)
def test_an_environment_that_fails_always_stops_the_stage_with_its_reason(
    broken: str, message: str
) -> None:
    class Broken(Parity):
        def sample(self, difficulty: int, seed: int) -> Problem:
            return super().sample(difficulty, seed) if broken != "sample" else {}["x"]  # type: ignore[return-value]

        def score(self, problem: Problem, answer: str) -> Score:
            if broken == "hang":
                threading.Event().wait()
            raise KeyError("x")

    made, state = stage(Broken(), most_rounds=1, score_seconds=0.01)
    with pytest.raises(RLError, match=message):
        made.step(state)


def test_shuffling_keeps_a_groups_rewards_and_moves_them() -> None:
    made, state = stage()
    made.step(state)
    order = np.random.default_rng(0)
    for group in made.last_groups:
        other = shuffled(group, order)
        assert sorted(other.rewards) == sorted(group.rewards)
    assert any(
        shuffled(g, order).rewards.tolist() != g.rewards.tolist() for g in made.last_groups * 5
    )


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("difficulty", [0, 2])
def test_practice_tasks_tell_right_from_wrong_and_hold_problems_out(
    task: str, difficulty: int
) -> None:
    learnt, held_out = PracticeEnvironment(task), PracticeEnvironment(task, held_out=True)
    prompts = set()
    for seed in range(50):
        problem = learnt.sample(difficulty, seed)
        prompts.add(problem.prompt)
        assert problem == learnt.sample(difficulty, seed)
        assert learnt.score(problem, learnt.demonstration(problem, right=True)).reward == 1
        assert learnt.score(problem, learnt.demonstration(problem, right=False)).reward == 0
    assert not prompts & {held_out.sample(difficulty, seed).prompt for seed in range(200)}


@pytest.mark.parametrize(("hardest", "asked", "drawn"), [(2, 5, 2), (2, 1, 1), (None, 5, 5)])
def test_held_out_problems_are_no_harder_than_their_environment_has(
    hardest: int | None, asked: int, drawn: int
) -> None:
    class Levels(Parity):
        def sample(self, difficulty: int, seed: int) -> Problem:
            difficulties.append(difficulty)
            return super().sample(difficulty, seed)

    difficulties: list[int] = []
    environment = Levels()
    environment.hardest = hardest  # type: ignore[assignment]
    made, _ = stage(held_out=(environment,))
    assert made.held_out_rewards(3, difficulty=asked)["parity"].shape == (3,)
    assert difficulties == [drawn] * 3


def test_unknown_tasks_and_small_numbers_are_refused() -> None:
    with pytest.raises(RLError, match="no practice task 'chess'"):
        PracticeEnvironment("chess")
    with pytest.raises(RLError, match="stage: group_size=1"):
        StageConfig(group_size=1)
