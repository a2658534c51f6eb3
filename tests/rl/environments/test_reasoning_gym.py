"""reasoning-gym behind the sandbox: samples by level, binary scores, hostile answers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from zaya_jax.rl.environments.protocol import ANSWER_INSTRUCTION, BrokenEnvironmentError
from zaya_jax.rl.environments.reasoning_gym import UNUSABLE, ReasoningGym
from zaya_jax.rl.environments.reasoning_gym_check import WITHOUT_ORACLE
from zaya_jax.rl.errors import RLError

pytest.importorskip("reasoning_gym")
pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="needs bubblewrap (apt-get install bubblewrap)"
)

SLOW_TO_MAKE = {"sokoban", "zebra_puzzles"}  # draw until one can be solved: some take very long


@pytest.fixture(scope="module")
def gym() -> Iterator[ReasoningGym]:
    made = ReasoningGym()
    yield made
    made.close()


def tagged(answer: object) -> str:
    return f"So the result is <answer>{answer}</answer>"


def test_all_data_sets_but_the_named_ones_are_there(gym: ReasoningGym) -> None:
    assert len(gym.names) == 106 - len(UNUSABLE)


def test_a_problem_is_reproduced_by_its_level_and_seed(gym: ReasoningGym) -> None:
    environment = gym.environment("basic_arithmetic")
    first = environment.sample(2, 5)
    assert first == environment.sample(2, 5)
    assert first.prompt != environment.sample(2, 6).prompt
    assert len(environment.sample(3, 5).prompt) > len(environment.sample(0, 5).prompt)
    assert first.prompt.endswith(ANSWER_INSTRUCTION)
    assert (first.source, first.difficulty) == ("reasoning_gym/basic_arithmetic", 2)


def test_difficulties_beyond_the_last_level_are_the_last(gym: ReasoningGym) -> None:
    environment = gym.environment("basic_arithmetic")
    beyond = environment.sample(99, 1)
    assert beyond.prompt == environment.sample(environment.hardest, 1).prompt
    assert environment.score(beyond, tagged(beyond.reference["answer"])).reward == 1


@pytest.mark.parametrize("name", ["chain_sum", "spiral_matrix", "countdown", "needle_haystack"])
def test_right_answers_score_one_and_others_nothing(gym: ReasoningGym, name: str) -> None:
    environment = gym.environment(name)
    problem = environment.sample(0, 3)
    right = str(problem.reference["answer"])
    assert environment.score(problem, tagged(right)).reward == 1
    for wrong in (tagged("no idea"), tagged(""), tagged(f"The answer is {right}, or 17"), right):
        assert environment.score(problem, wrong).reward == 0


def test_an_answer_that_hangs_or_breaks_the_scorer_is_wrong_not_broken(gym: ReasoningGym) -> None:
    environment = gym.environment("prime_factorization")
    refused = environment.score(environment.sample(0, 1), tagged("two times three"))
    assert (refused.reward, refused.broken) == (0, False)


def test_unknown_and_unusable_data_sets_are_refused(gym: ReasoningGym) -> None:
    with pytest.raises(RLError, match="has no data set 'chess'"):
        gym.environment("chess")
    with pytest.raises(RLError, match="'composite' cannot be used"):
        gym.environment("composite")


def test_a_problem_that_refuses_its_own_answer_is_not_made(gym: ReasoningGym) -> None:
    with pytest.raises(BrokenEnvironmentError, match="seed 9: its own answer is graded 0"):
        gym.environment("jugs").sample(1, 9)  # answers that there is no solution


def test_levels_with_a_refused_configuration_are_passed_over(gym: ReasoningGym) -> None:
    environment = gym.environment("modulo_grid")
    assert environment.hardest == 4
    assert environment.sample(1, 1).difficulty == 1


@pytest.mark.slow
def test_every_data_set_gives_one_to_its_own_answer_and_nothing_to_others(
    gym: ReasoningGym,
) -> None:
    failures = []
    for name in gym.names:
        environment = gym.environment(name)
        for difficulty, seed in ((0, 0), (0, 1), (environment.hardest, 0)):
            try:
                problem = environment.sample(difficulty, seed)
            except BrokenEnvironmentError as error:
                if name in SLOW_TO_MAKE and "took more than" in str(error):
                    continue
                failures.append((name, difficulty, str(error)))
                continue
            oracle = problem.reference["answer"]
            if oracle is not None and environment.score(problem, tagged(oracle)).reward != 1:
                failures.append((name, difficulty, f"refuses its answer {oracle!r:.80}"))
            if environment.score(problem, tagged("I cannot tell %$")).reward != 0:
                failures.append((name, difficulty, "takes nonsense"))
            if oracle is None and name not in WITHOUT_ORACLE:
                failures.append((name, difficulty, "gives no answer"))
    assert failures == []
