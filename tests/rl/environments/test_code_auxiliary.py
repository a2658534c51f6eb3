"""Predicting, inverting, rewriting and refuting programs; all of them run in the sandbox."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from zaya_jax.rl.environments.code import CodeRecord, CodeTest
from zaya_jax.rl.environments.code_auxiliary import (
    Falsification,
    InputPrediction,
    OutputPrediction,
    Reconstruction,
)
from zaya_jax.rl.environments.protocol import (
    BrokenEnvironmentError,
    Environment,
    Problem,
    score_response,
)
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.sandbox import Sandbox
from zaya_jax.rl.sandbox_command import Limits

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="needs bubblewrap (apt-get install bubblewrap)"
)
MAXIMUM = CodeRecord(
    statement="Print the largest of some integers between -99 and 99.",
    tests=(CodeTest("1 5 3", "5\n"), CodeTest("7", "7\n"), CodeTest("-4 -9", "-4\n")),
    accepted=(
        "print(max(map(int, input().split())))",
        "print(sorted(map(int, input().split()))[-1])",
    ),
    rejected=("print(max([0, *map(int, input().split())]))",),
    validator="assert all(-99 <= int(word) <= 99 for word in input().split())",
)


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return Sandbox(Limits(wall_seconds=30.0, cpu_seconds=1))


def rewards(environment: Environment, problem: Problem, answers: dict[str, float]) -> None:
    """Checks what answers are worth, also after a checkpoint."""
    problem = Problem(**json.loads(json.dumps(vars(problem))))
    for answer, reward in answers.items():
        score = score_response(environment, problem, answer)
        assert (score.reward, score.broken) == (reward, False), (answer, score)


def tagged(answer: str) -> str:
    return f"<answer>{answer}</answer>"


def fenced(program: str) -> str:
    return f"```python\n{program}\n```"


def test_the_output_of_a_program_is_predicted(sandbox: Sandbox) -> None:
    environment = OutputPrediction([MAXIMUM], sandbox)
    problem = environment.sample(0, 1)
    assert problem == environment.sample(0, 1)
    shown = re.findall(r"```(?:python)?\n(.*?)\n```", problem.prompt, re.DOTALL)
    assert shown[0] in MAXIMUM.accepted
    right = str(max(map(int, shown[1].split())))
    rewards(
        environment,
        problem,
        {tagged(f" {right}\n"): 1, tagged("99"): 0, tagged(f"{right} {right}"): 0, right: 0},
    )
    prompts = {environment.sample(0, seed).prompt for seed in range(6)}
    assert len(prompts) > 2  # programs and inputs are drawn


def test_any_input_that_gives_the_output_will_do(sandbox: Sandbox) -> None:
    environment = InputPrediction([MAXIMUM], sandbox)
    problem = environment.sample(0, 2)
    output = problem.reference["output"].strip()
    assert output in problem.prompt
    rewards(
        environment,
        problem,
        {
            tagged(output): 1,
            tagged(f"-99 {output} -98"): 1,
            tagged(f"{output} 99"): 0,
            tagged("a"): 0,
            tagged(output + " -99" * 30_000): 0,
            output: 0,
        },
    )


def test_a_program_is_judged_on_tests_that_were_not_shown(sandbox: Sandbox) -> None:
    environment = Reconstruction([MAXIMUM], sandbox, examples=2)
    problem = environment.sample(0, 0)
    shown = problem.reference["shown"]
    held_out = ({0, 1, 2} - set(shown)).pop()
    known = {MAXIMUM.tests[i].stdin: MAXIMUM.tests[i].stdout for i in shown}
    for stdin, stdout in known.items():
        assert stdin in problem.prompt
        assert stdout in problem.prompt
    assert f"\n{MAXIMUM.tests[held_out].stdin}\n" not in problem.prompt
    rewards(
        environment,
        problem,
        {
            fenced(MAXIMUM.accepted[1]): 1,
            fenced(f"print({known!r}.get(input(), 'unknown'))"): 0,
            tagged("5"): 0,
        },
    )
    greedy = Reconstruction([MAXIMUM], sandbox, examples=9)
    assert len(greedy.sample(0, 0).reference["shown"]) == 2  # one is always kept back


def test_a_candidate_is_refuted_by_an_allowed_input_it_gets_wrong(sandbox: Sandbox) -> None:
    environment = Falsification([MAXIMUM], sandbox)
    problem = environment.sample(0, 0)
    assert MAXIMUM.rejected[0] in problem.prompt
    assert MAXIMUM.accepted[0] not in problem.prompt
    rewards(
        environment,
        problem,
        {
            tagged("-4 -9"): 1,
            tagged("-4 9"): 0,  # right there
            tagged("-100"): 0,  # not allowed
            tagged("-0.5"): 0,
            tagged(""): 0,
            "-4 -9": 0,
        },
    )


def test_crashing_or_hanging_refutes_a_candidate_but_never_a_trusted_program(
    sandbox: Sandbox,
) -> None:
    division = CodeRecord(
        statement="Print 6 divided by the number.",
        tests=(CodeTest("2", "3"),),
        accepted=("print(6 // int(input()))",),
        rejected=("n = int(input())\nwhile n == 1: pass\nprint(6 // n + [0, 0][n])",),
    )
    environment = Falsification([division], sandbox)
    rewards(
        environment,
        environment.sample(0, 0),
        {tagged("1"): 1, tagged("5"): 1, tagged("0"): 0, tagged("-1"): 0},
    )


def test_trusted_programs_that_disagree_refute_nobody(sandbox: Sandbox) -> None:
    torn = CodeRecord(
        "Double.",
        MAXIMUM.tests,
        accepted=("print(2 * int(input()))", "print(2 * abs(int(input())))"),
        rejected=("print(0)",),
    )
    environment = Falsification([torn], sandbox)
    rewards(environment, environment.sample(0, 0), {tagged("-1"): 0, tagged("1"): 1})


def test_programs_with_nothing_short_to_show_make_no_problem(sandbox: Sandbox) -> None:
    for program in ("1 / 0", "print()", "print('x ' * 5_000)"):
        record = CodeRecord("x", (CodeTest("1", "1"),), accepted=(program,))
        for environment in (
            OutputPrediction([record], sandbox),
            InputPrediction([record], sandbox),
        ):
            with pytest.raises(
                BrokenEnvironmentError, match="no test of record 0 has a run to show"
            ):
                environment.sample(0, 0)


def test_records_without_what_a_task_needs_are_left_out(sandbox: Sandbox) -> None:
    bare = CodeRecord("Print 1.", (CodeTest("", "1"),), level=1)
    for family in (OutputPrediction, InputPrediction, Reconstruction, Falsification):
        assert family([MAXIMUM, bare], sandbox).hardest == 0
        with pytest.raises(RLError, match=r"\(0 usable records\): levels \[\]"):
            family([bare], sandbox)
