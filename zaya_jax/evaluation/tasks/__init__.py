"""Every kind of task by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from zaya_jax.evaluation.settings import TaskConfig
from zaya_jax.evaluation.tasks.code import Code
from zaya_jax.evaluation.tasks.exact import Exact
from zaya_jax.evaluation.tasks.final_answer import FinalAnswer
from zaya_jax.evaluation.tasks.instructions import Instructions
from zaya_jax.evaluation.tasks.multiple_choice import MultipleChoice
from zaya_jax.evaluation.tasks.protocol import Task
from zaya_jax.evaluation.tasks.reasoning_gym import ReasoningGymTask


def _reasoning_gym(config: TaskConfig, path: Path, unsafe: bool) -> Task:
    return ReasoningGymTask(
        config.source,
        difficulty=config.difficulty,
        count=config.problems or 50,
        seed=config.problem_seed,
        unsafe=unsafe,
    )


KINDS: dict[str, Callable[[TaskConfig, Path, bool], Task]] = {
    "exact": lambda config, path, unsafe: Exact(path),
    "final_answer": lambda config, path, unsafe: FinalAnswer(path, unsafe=unsafe),
    "multiple_choice": lambda config, path, unsafe: MultipleChoice(path),
    "instructions": lambda config, path, unsafe: Instructions(path),
    "code": lambda config, path, unsafe: Code(path, unsafe=unsafe),
    "reasoning_gym": _reasoning_gym,
}


def make_task(config: TaskConfig, data: Path, *, unsafe: bool = False) -> Task:
    """The task a configuration names.

    Args:
      config: of the task.
      data: folder that relative paths start from.
      unsafe: run programs without a sandbox where there is none.

    Raises:
      EvaluationError: when its data break a rule.
      RLError: when a library or the sandbox is missing.
    """
    return KINDS[config.kind](config, data / config.source, unsafe)
