"""What an evaluation is made of."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from zaya_jax.evaluation.errors import EvaluationError
from zaya_jax.inference.rsa_settings import RSA_PRESETS, RSASettings, rsa_preset
from zaya_jax.inference.settings import EngineSettings


class TaskKind(enum.StrEnum):
    """What a task asks for; one file in `zaya_jax/evaluation/tasks` each."""

    EXACT = "exact"
    FINAL_ANSWER = "final_answer"
    MULTIPLE_CHOICE = "multiple_choice"
    INSTRUCTIONS = "instructions"
    CODE = "code"
    REASONING_GYM = "reasoning_gym"


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
    """How answers are drawn.

    Raises:
      EvaluationError: on construction, when a field breaks a rule.
    """

    temperature: float = 1.0  # 0 is greedy
    top_p: float = 0.95  # least set of likely tokens that reaches this; 1 keeps all
    top_k: int = 0  # most tokens to keep; 0 keeps all
    max_tokens: int = 40_960  # of thinking and answer together
    thinking: bool = True  # whether the model thinks before it answers

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100:
            raise EvaluationError(f"temperature={self.temperature!r}: must lie in [0, 100]")
        if not 0 < self.top_p <= 1:
            raise EvaluationError(f"top_p={self.top_p!r}: must lie in (0, 1]")
        if self.top_k < 0 or self.max_tokens < 1:
            raise EvaluationError(
                f"top_k={self.top_k!r}, max_tokens={self.max_tokens!r}: top_k must not be "
                "negative, max_tokens at least 1"
            )


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """One task: its problems, and how often each is tried.

    Raises:
      EvaluationError: on construction, when a field breaks a rule.
    """

    kind: TaskKind = TaskKind.FINAL_ANSWER
    source: str = ""  # file of problems below config.data, or the data set of reasoning_gym
    samples: int = 1  # independent tries of every problem: the k of avg@k
    problems: int | None = None  # only the first so many; none: all, of reasoning_gym 50
    difficulty: int = 0  # reasoning_gym only: level of the problems
    problem_seed: int = 0  # reasoning_gym only: what the problems are made from
    sampling: SamplingConfig = dataclasses.field(default_factory=SamplingConfig)

    def __post_init__(self) -> None:
        if self.kind not in list(TaskKind):
            raise EvaluationError(f"kind={self.kind!r} must be one of: {', '.join(TaskKind)}")
        object.__setattr__(self, "kind", TaskKind(self.kind))
        if not self.source:
            raise EvaluationError("source is empty; name a file or a data set of reasoning-gym")
        if self.samples < 1 or (self.problems is not None and self.problems < 1):
            raise EvaluationError(
                f"samples={self.samples!r}, problems={self.problems!r}: must be at least 1"
            )


@dataclasses.dataclass(frozen=True)
class RSAConfig:
    """Changes to the Markovian RSA that `--ttc` names; none keeps the preset's value."""

    rounds: int | None = None  # of aggregation after the first one
    population: int | None = None  # candidates of a round; of a majority vote (16)
    subset: int | None = None  # tails that a candidate reads
    thinking_budget: int | None = None  # reasoning tokens of a rollout
    tail: int | None = None  # tokens passed on
    answer_budget: int | None = None  # tokens of a final answer
    pass_answers: bool | None = None  # pass on the answer where a candidate finished
    temperature: float = 1.0  # of every rollout
    top_p: float = 1.0  # of every rollout

    def settings(self, preset: str, seed: int) -> RSASettings:
        """The preset with these changes.

        Raises:
          ConfigError: when they do not fit together.
        """
        changes = {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if value is not None and name not in ("temperature", "top_p")
        }
        return dataclasses.replace(rsa_preset(preset), **changes, seed=seed)


# Ways to spend compute on a problem: plain samples, a vote among them, Markovian RSA by preset.
PLAIN, MAJORITY = "none", "majority"
METHODS = (PLAIN, MAJORITY, *RSA_PRESETS)
MAJORITY_POPULATION = 16


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """Everything that decides an evaluation.

    Raises:
      EvaluationError: on construction, when a field breaks a rule.
    """

    tasks: Mapping[str, TaskConfig]
    init_from: str = ""  # checkpoint or run to evaluate with our engine; "": the server at `url`
    tokenizer: str = ""  # name or tokenizer.json; "": the checkpoint's own
    url: str = ""  # of an OpenAI-compatible server, usually ending in /v1
    model: str = ""  # name under which that server knows the model
    api_key_file: str = ""  # file that holds the server's key; "": none
    data: str = "."  # folder that the tasks' files lie in
    seed: int = 0  # of all samples
    concurrency: int = 64  # rollouts at the same time
    timeout: float = 3_600.0  # seconds for one answer of a server
    most_failures: int = 16  # answers that may fail before the evaluation stops
    confidence: float = 0.95  # of the intervals
    resamples: int = 10_000  # of the bootstrap
    unsafe: bool = False  # run programs of the model without a sandbox where there is none
    engine: EngineSettings = dataclasses.field(default_factory=EngineSettings)
    rsa: RSAConfig = dataclasses.field(default_factory=RSAConfig)

    def __post_init__(self) -> None:
        if not self.tasks:
            raise EvaluationError("tasks is empty; there is nothing to evaluate")
        if bool(self.init_from) == bool(self.url):
            raise EvaluationError(
                f"init_from={self.init_from!r}, url={self.url!r}: name a checkpoint or a server, "
                "one of the two"
            )
        if self.url and not self.model:
            raise EvaluationError(f"url={self.url!r} needs `model`, the name it is served under")
        for name in ("concurrency", "resamples", "most_failures", "timeout"):
            if not getattr(self, name) > 0:
                raise EvaluationError(f"{name}={getattr(self, name)!r}: must be positive")
        if not 0 < self.confidence < 1:
            raise EvaluationError(f"confidence={self.confidence!r}: must lie between 0 and 1")
