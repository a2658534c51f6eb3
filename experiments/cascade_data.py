"""Writes what the small cascade learns from and is measured on; nothing is downloaded.

    python -m experiments.cascade_data --workdir DIR

| file | rows |
| --- | --- |
| `traces.jsonl` | exercises on digits with worked solutions, for midtraining |
| `lessons.jsonl` | the same, digits in words, and what programs print, for SFT |
| `attempts.jsonl` | problems with eight attempts each, for aggregation examples |
| `held_out/*.jsonl` | problems unlike any that a stage trains on: longer, or a digit twice |
| `tokenizer.json` | 640 tokens, learnt from these and the prompts of aggregation |

The teacher is right in 45 answers of 100 (`zaya_jax/rl/environments/exercises.py`), so the policy
that reinforcement starts from knows the right way and does not prefer it. The same command writes
the same files.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.command_line import run_reporting_errors
from zaya_jax.data.aggregation_prompt import Piece, aggregation_prompt, prompt_text
from zaya_jax.data.train_tokenizer import train_bpe
from zaya_jax.rl.environments.code import CodeRecord, CodeTest
from zaya_jax.rl.environments.code_auxiliary.output_prediction import OutputPrediction
from zaya_jax.rl.environments.exercises import EXERCISES, ExerciseEnvironment, Worked
from zaya_jax.rl.environments.protocol import Environment, Problem
from zaya_jax.rl.sandbox import Sandbox
from zaya_jax.training.workdir import claimed, folder_option

RIGHT_SHARE = 0.45
VOCABULARY = 640
# Highest difficulty that any stage trains on: 6 digits, and 4 numbers to add.
HARDEST = {"reverse": 3, "sort": 3, "largest": 3, "add": 1, "say": 1}
# Families that no stage trains on: more digits than any, or a digit that comes twice.
HELD_OUT = {
    "add_longer": ("add", 5, False),
    "reverse_longer": ("reverse", 7, False),
    "add_twice": ("add", 4, True),
    "sort_twice": ("sort", 5, True),
}
ROWS = {"reverse": 3_000, "sort": 3_000, "largest": 2_000, "add": 8_000, "say": 1_500}
CODE_PROBLEMS, CODE_ROWS = 150, 300  # of each program: each problem is asked twice
ATTEMPTS = {"add": 4_000, "sort": 1_500, "reverse": 1_500}
CANDIDATES = 8
FIRST_ATTEMPTED = 1_000_000  # seed of the first problem with attempts
PROBLEMS = 48  # of each held-out family
PROGRAMS = {
    "sort": "print(*sorted(input().split()))",
    "reverse": "print(*input().split()[::-1])",
    "largest": "print(max(input().split()))",
}


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.cascade_data",
        description=__doc__,
        epilog="example:\n  python -m experiments.cascade_data --workdir runs/cascade/data",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--workdir", required=True, type=folder_option, help="folder to write into")
    folder = parser.parse_args(argv).workdir
    with claimed(folder):
        write(folder)
    return 0


def write(folder: Path) -> None:
    """All files, into a folder that is there."""
    (folder / "held_out").mkdir(exist_ok=True)
    traces = [row for name in ROWS if name != "say" for row in exercise_rows(name, ROWS[name])]
    lessons = [*traces, *exercise_rows("say", ROWS["say"]), *code_rows()]
    attempts = [row for name, count in ATTEMPTS.items() for row in attempt_rows(name, count)]
    for name, rows in (("traces", traces), ("lessons", lessons), ("attempts", attempts)):
        write_rows(folder / f"{name}.jsonl", rows)
    for name, family in HELD_OUT.items():
        write_rows(folder / "held_out" / f"{name}.jsonl", held_out_rows(*family))
    tokenizer = train_bpe(texts(lessons, attempts), VOCABULARY)
    tokenizer.save(str(folder / "tokenizer.json"))
    print(
        f"wrote {len(lessons):,} lessons and {len(attempts):,} problems with attempts to {folder}"
    )


def exercise_rows(name: str, count: int) -> Iterator[dict[str, Any]]:
    """Conversations of one kind of exercise, of all difficulties that stages train on."""
    environment = ExerciseEnvironment(name)
    for seed in range(count):
        draw = random.Random(f"{name} {seed}")
        problem = environment.sample(draw.randint(0, HARDEST[name]), seed)
        right = draw.random() < RIGHT_SHARE
        worked = environment.demonstration(problem, right=right, seed=seed)
        if name == "say" and draw.random() < 0.5:  # half of them as a sentence
            worked = worked._replace(answer=f"{worked.answer.capitalize()}.")
        yield conversation(problem.prompt, worked)


def held_out_rows(name: str, digits: int, twice: bool) -> Iterator[dict[str, Any]]:
    """Problems of a family: so many digits, all different or one of them twice."""
    exercise = EXERCISES[name]
    for seed in range(PROBLEMS):
        draw = random.Random(f"held out {name} {digits} {seed}")
        drawn = draw.sample(range(10), digits - twice)
        drawn += [draw.choice(drawn)] * twice
        draw.shuffle(drawn)
        question = f"{exercise.instruction} {' '.join(map(str, drawn))}"
        yield {"problem": question, "answer": exercise.careful(drawn).answer}


def code_rows() -> Iterator[dict[str, Any]]:
    """Conversations about what a program prints."""
    for name in PROGRAMS:
        environment = code_environment([name], held_out=False)
        problems = [environment.sample(0, seed) for seed in range(CODE_PROBLEMS)]
        for number in range(CODE_ROWS):
            draw = random.Random(f"code {name} {number}")
            problem = problems[number % len(problems)]
            given = re.findall(r"```\n([\d ]+)\n```", problem.prompt)[-1].split()
            digits = [int(digit) for digit in given]
            exercise = EXERCISES[name]
            right = draw.random() < RIGHT_SHARE
            worked = exercise.careful(digits) if right else exercise.careless(digits, draw)
            yield conversation(
                problem.prompt, worked._replace(answer=f"<answer>{worked.answer}</answer>")
            )


def attempt_rows(name: str, count: int) -> Iterator[dict[str, Any]]:
    """Records for aggregation examples."""
    environment = ExerciseEnvironment(name)
    for seed in range(count):
        difficulty = random.Random(f"attempts {name} {seed}").randint(0, HARDEST[name])
        problem = environment.sample(difficulty, FIRST_ATTEMPTED + seed)
        right = problem.reference["answer"]
        candidates = [
            {**one._asdict(), "correct": one.answer == right}
            for one in attempts(environment, problem)
        ]
        yield {"problem": problem.prompt, "candidates": candidates}


def attempts(environment: ExerciseEnvironment, problem: Problem) -> list[Worked]:
    """What eight pupils write, of whom one at least is careful; how many are is drawn evenly."""
    draw = random.Random(f"attempts {problem.source} {problem.seed}")
    careful = draw.sample(range(CANDIDATES), draw.randint(1, CANDIDATES))
    return [
        environment.demonstration(problem, right=number in careful, seed=draw.getrandbits(31))
        for number in range(CANDIDATES)
    ]


def code_environment(names: Iterable[str], *, held_out: bool) -> Environment:
    """What the programs print, on digits of one part or the other.

    The programs are those above, none is a model's: they may run without a sandbox where there is
    none.
    """
    records = [_code_record(name, held_out=held_out) for name in names]
    return OutputPrediction(records, Sandbox(unsafe=True))


def _code_record(name: str, *, held_out: bool) -> CodeRecord:
    environment = ExerciseEnvironment(name, held_out=held_out)
    problems = [environment.sample(seed % 3, seed) for seed in range(300)]
    tests = tuple(
        CodeTest(
            f"{' '.join(map(str, problem.reference['digits']))}\n", problem.reference["answer"]
        )
        for problem in problems
    )
    return CodeRecord(EXERCISES[name].instruction, tests, (PROGRAMS[name],))


def conversation(question: str, worked: Worked) -> dict[str, Any]:
    """A row of chat data."""
    return {
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "reasoning": worked.reasoning, "content": worked.answer},
        ]
    }


def texts(lessons: Sequence[Mapping[str, Any]], attempts: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the tokenizer learns from."""
    said = [
        f"user\n{user['content']}\nassistant\n{teacher['reasoning']}\n\n{teacher['content']}"
        for user, teacher in (row["messages"] for row in lessons)
    ]
    shown = [
        prompt_text(
            aggregation_prompt(row["problem"], [Piece(c["reasoning"]) for c in row["candidates"]])
        )
        for row in attempts[:: max(1, len(attempts) // 500)]
    ]
    return said + shown


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """One JSON object a line, whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    temporary.rename(path)


if __name__ == "__main__":
    run_reporting_errors(lambda: main(sys.argv[1:]))
