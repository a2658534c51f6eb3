"""RLVE-Gym from a checkout: difficulty, scores, and the traps of its interface."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rl.environments.rlve_stand_in import write_checkout
from zaya_jax.rl.environments.protocol import (
    ANSWER_INSTRUCTION,
    BrokenEnvironmentError,
    Problem,
    score_response,
)
from zaya_jax.rl.environments.rlve_check import check, main
from zaya_jax.rl.environments.rlve_gym import RLVEGym
from zaya_jax.rl.errors import RLError

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="needs bubblewrap (apt-get install bubblewrap)"
)


@pytest.fixture(scope="module")
def gym(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RLVEGym]:
    folder = write_checkout(tmp_path_factory.mktemp("checkout"))
    made = RLVEGym(folder, seconds=30.0, most_prompt_characters=10_000)
    yield made
    made.close()


def tagged(answer: object) -> str:
    return f"Thus <answer>{answer}</answer>."


def test_difficulty_is_the_number_of_updates_and_can_go_down(gym: RLVEGym) -> None:
    environment = gym.environment("Sum")
    terms = [environment.sample(d, 3).prompt.count("+") + 1 for d in (0, 3, 1)]
    assert terms == [1, 8, 2]
    assert environment.hardest is None


def test_a_problem_is_reproduced_by_its_level_and_seed(gym: RLVEGym) -> None:
    environment = gym.environment("Sum")
    first = environment.sample(2, 5)
    assert first == environment.sample(2, 5)
    assert first.prompt.endswith(ANSWER_INSTRUCTION)
    assert first.source == "rlve/Sum"
    prompts = {environment.sample(0, seed).prompt for seed in range(30)}
    lengths = {len(prompt.split("?")[0].split()[-1]) for prompt in prompts}
    assert lengths == {1, 2}  # both parameter sets of the level are drawn


def test_the_accuracy_is_the_reward(gym: RLVEGym) -> None:
    environment = gym.environment("Sum")
    problem = environment.sample(2, 5)
    problem = Problem(**json.loads(json.dumps(vars(problem))))  # a checkpoint keeps it
    right = problem.reference["answer"]
    for response, reward in (
        (tagged(right), 1),
        (tagged(int(right) + 1), 0),
        (tagged("seven"), 0),
        (right, 0),
        (f"<think>{tagged(right)}</think>no", 0),
        (f"Assistant: <think>x</think>Assistant: {tagged(right)}", 1),
    ):
        score = score_response(environment, problem, response)
        assert (score.reward, score.broken) == (reward, False), response


def test_an_environments_own_threshold_counts(gym: RLVEGym) -> None:
    environment = gym.environment("Graded")
    problem = environment.sample(0, 1)
    right = int(problem.reference["answer"])
    scores = [environment.score(problem, tagged(right + off)).reward for off in (0, 1, 2)]
    assert scores == [1, 1, 0]
    refused = environment.score(problem, tagged("seven"))
    assert (refused.reward, refused.broken) == (0, False)
    assert "ValueError" in refused.reason


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Unlucky", "made no problem"),
        ("Long", "prompt of 100,0"),
        ("Endless", "took more than 1 s"),
    ],
)
def test_what_cannot_be_made_is_broken_and_the_gym_lives_on(
    gym: RLVEGym, name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "Endless":
        monkeypatch.setattr(gym, "seconds", 1.0)
    with pytest.raises(
        BrokenEnvironmentError, match=f"rlve/{name} difficulty 1 seed 0: .*{message}"
    ):
        gym.environment(name).sample(1, 0)
    monkeypatch.undo()
    assert gym.environment("Sum").sample(0, 0).prompt


def test_a_problem_that_cannot_be_made_again_is_broken_not_wrong(gym: RLVEGym) -> None:
    environment = gym.environment("Restless")
    score = score_response(environment, environment.sample(0, 1), tagged(3))
    assert (score.reward, score.broken) == (0, True)
    assert "gives another problem" in score.reason


@pytest.mark.parametrize(
    "answer",
    [
        "open('/etc/passwd').read()",
        "__import__('os').kill(1, 9) or open('/packages/1/x', 'w')",
        "__import__('sys').exit()",
    ],
)
def test_a_verifier_that_evaluates_answers_harms_nobody(gym: RLVEGym, answer: str) -> None:
    environment = gym.environment("Trusting")
    problem = environment.sample(0, 1)
    score = environment.score(problem, tagged(answer))
    assert (score.reward, score.broken) == (0, False)
    assert gym.environment("Sum").sample(0, 0).prompt


def test_unknown_and_unusable_environments_are_refused(gym: RLVEGym) -> None:
    assert "PolyaModel" not in gym.names
    with pytest.raises(RLError, match="'PolyaModel' cannot be used: it looks for the answer in"):
        gym.environment("PolyaModel")
    with pytest.raises(RLError, match="no environment 'Product'; it has Endless, Graded"):
        gym.environment("Product")


def test_a_folder_that_is_no_checkout_is_named(tmp_path: Path) -> None:
    with pytest.raises(RLError, match="nowhere' is no checkout of RLVE-Gym: it has no Gym/environ"):
        RLVEGym(tmp_path / "nowhere")
    folder = write_checkout(tmp_path, "import nowhere_installed")
    with pytest.raises(
        RLError, match=r"(?s)cannot be imported: .*nowhere_installed.*needs networkx"
    ):
        RLVEGym(folder)


def test_the_check_names_what_does_not_work(
    gym: RLVEGym, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gym, "names", ("Long", "Restless", "Secret", "Sum"))
    report = check(gym, hardest=1)
    assert (report.environments, report.problems, report.without_answer) == (4, 6, 1)
    assert [line.split(":")[0].split()[0] for line in report.faults] == ["rlve/Long"] * 2 + [
        "rlve/Restless"
    ] * 4
    assert main(["/nowhere"]) == 2
    assert "no checkout" in capsys.readouterr().err
