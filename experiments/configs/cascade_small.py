"""From raw text to a small model that reasons, in four stages of RL, on two CPU cores.

    make cascade
    python -m experiments.cascade --config experiments/configs/cascade_small.py --workdir DIR

and with `--dry-run` the commands, without running them. What is learnt and measured, and what came
of it: docs/cascade.md. One stage by itself, from a folder that the cascade has made:

    python -m experiments.rl --config experiments/configs/cascade_small.py:rl_warmup \\
        --workdir DIR/again --config.init_from=DIR/sft \\
        --config.data.tokenizer=DIR/data/tokenizer.json

| step | what it does | context |
| --- | --- | --- |
| data | exercises by a teacher who is right in 45 of 100, and a tokenizer | |
| pretrain | Python's standard library | 256 |
| midtrain | exercises with worked traces, library text | 512 |
| sft | the same with two kinds more, and aggregation examples | 512 |
| rl_warmup | reverse, sort, largest, on 3 digits | 256 |
| rl_adaptive | sums too, as long as the policy can solve them | 256 |
| rl_maths_code_ttc | sums, what programs print, aggregation of attempts | 256 |
| rl_behavioral | digits in words, judged for manners where right; some of the above | 256 |

After sft and after every stage of RL: problems of four families that no stage trains on; after sft
and at the end also by vote and by Markovian RSA with three seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from ml_collections import ConfigDict

from experiments.cascade_data import HARDEST, PROGRAMS, attempts, code_environment
from experiments.cascade_steps import CascadeStep
from experiments.configs import base
from zaya_jax.config import ConfigError
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.inference.settings import EngineSettings
from zaya_jax.rl.environments.aggregation import AggregationConfig, AggregationEnvironment
from zaya_jax.rl.environments.exercises import ExerciseEnvironment
from zaya_jax.rl.environments.preferences import GatedEnvironment
from zaya_jax.rl.environments.protocol import THINK_END, THINK_START, Environment
from zaya_jax.rl.length_reward import LengthRewardConfig
from zaya_jax.rl.prompts import PromptStyle
from zaya_jax.rl.rewards import RewardConfig
from zaya_jax.rl.setup import RLSetup
from zaya_jax.rl.stage_config import StageConfig

SUPERVISED = ("pretrain", "midtrain", "sft")
STEPS = {"rl_warmup": 16, "rl_adaptive": 50, "rl_maths_code_ttc": 80, "rl_behavioral": 24}
REINFORCED = tuple(STEPS)
AGGREGATED = ("add", "sort", "reverse")
SEEDS = (0, 1, 2)
PROMPT_TOKENS, RESPONSE_TOKENS = 208, 48
EVALUATION = Path(__file__).parent / "evaluation" / "cascade_small.py"
TOKENS_PER_STEP = 2_048


def get_steps(workdir: Path) -> Iterator[CascadeStep]:
    """All steps, each from the one before."""
    data = workdir / "data"
    yield CascadeStep("data", "experiments.cascade_data")
    tokenizer = f"--config.data.tokenizer={data / 'tokenizer.json'}"
    before: tuple[str, ...] = ()
    for name in (*SUPERVISED, *REINFORCED):
        module = f"experiments.{name}" if name in SUPERVISED else "experiments.rl"
        mixture = _mixture(name, data)
        yield CascadeStep(
            name, module, ("--config", f"{__file__}:{name}", tokenizer, *mixture, *before)
        )
        before = (f"--config.init_from={workdir / name}",)
        if name in ("sft", *REINFORCED[:-1]):
            yield _evaluation(f"{name}_measured", "none", 0, data, before, f"{name}: single")
        if name == "sft":
            yield from _votes_and_rsa(name, data, before)
    for seed in SEEDS:
        yield _evaluation(f"none_{seed}", "none", seed, data, before, f"{REINFORCED[-1]}: single")
    yield from _votes_and_rsa(REINFORCED[-1], data, before)


def get_config(name: str = "pretrain") -> ConfigDict:
    """Model, optimiser and run of a stage; 0.9M parameters.

    Raises:
      ConfigError: for an unknown stage.
    """
    _check(name)
    config = base.get_config("nano")
    model = config.model
    model.vocab_size = 640
    model.hidden_size = 96
    model.num_layers = 3
    model.num_experts = 4
    model.expert_intermediate_size = 192
    model.initializer_stddev = 0.08
    model.expert_dispatch = "dense"
    config.data.packing = "planned"
    config.data.max_bytes = None
    config.data.validation_fraction = 0.02
    config.data.validation_batches = 4
    config.optimizer.kind = "muon"
    config.optimizer.warmup_steps = 20
    config.train.sample_tokens = 0
    if name in REINFORCED:
        _reinforced(config, name)
    else:
        _supervised(config, name)
    return config


def get_rl(name: str = "rl_warmup") -> RLSetup:
    """Environments and rules of a stage: 16 problems of 8 rollouts a step.

    Raises:
      ConfigError: for an unknown stage.
    """
    if name not in REINFORCED:
        raise ConfigError(f"RL stage {name!r} is none of: {', '.join(REINFORCED)}")
    return RLSetup(
        stage=StageConfig(
            prompts=16,
            group_size=8,
            row_length=256,
            rows_per_microbatch=16,
            norm=RESPONSE_TOKENS,
            most_rounds=3,
            prompt=PromptStyle.THINKING,
            rewards=RewardConfig(length=LengthRewardConfig(coefficient=0.0)),
        ),
        environments=lambda: _ENVIRONMENTS[name](False),
        held_out=lambda: _ENVIRONMENTS[name](True),
        shares={"exercise/say+judged": 5.0} if name == "rl_behavioral" else {},
        hardest=0 if name == "rl_warmup" else None,
        # Where the curriculum leads, for the stage that has one.
        evaluation_difficulty=max(HARDEST.values()) if name == "rl_adaptive" else 0,
        most_prompt_tokens=PROMPT_TOKENS,
        most_response_tokens=RESPONSE_TOKENS,
        engine=EngineSettings(
            slots=128,
            page_size=32,
            cache_tokens=128 * (PROMPT_TOKENS + RESPONSE_TOKENS),
            prefill_chunk=64,
            prefill_rows=32,
            least_rows=128,
            least_table=8,
            decode_steps=12,
            prefix_cache=False,
        ),
        evaluation_interval=20,
        evaluation_problems=128,
    )


class FullSentences:
    """A judge of manners: an answer is better as a sentence."""

    def score(self, prompt: str, response: str) -> float:
        """1 for a capital letter at the start and a full stop at the end, else 0.2."""
        del prompt
        text = response.strip()
        return 1.0 if text[:1].isupper() and text.endswith(".") else 0.2


def _exercises(*names: str, held_out: bool) -> tuple[Environment, ...]:
    return tuple(ExerciseEnvironment(n, hardest=HARDEST[n], held_out=held_out) for n in names)


def _maths_code_ttc(held_out: bool) -> tuple[Environment, ...]:
    return (
        *_exercises("add", held_out=held_out),
        code_environment(PROGRAMS, held_out=held_out),
        *(_aggregation(name, held_out) for name in AGGREGATED),
    )


def _aggregation(name: str, held_out: bool) -> Environment:
    """An exercise beside four attempts of pupils, of three lengths of digits at most."""
    hardest = min(HARDEST[name], 2)
    inner = ExerciseEnvironment(name, hardest=hardest, held_out=held_out)
    responses = {
        (difficulty, seed): [
            f"{THINK_START}\n{one.reasoning}\n{THINK_END}"
            for one in attempts(inner, inner.sample(difficulty, seed))
        ]
        for difficulty in range(hardest + 1)
        for seed in range(300)
    }
    tokenizer = load_tokenizer("bytes")  # a tail of 200 bytes is all of an attempt here
    return AggregationEnvironment(
        inner,
        responses,
        AggregationConfig(tail_tokens=200, origin="expert"),
        encode=tokenizer.encode,
        decode=tokenizer.decode,
    )


def _behavioral(held_out: bool) -> tuple[Environment, ...]:
    """Manners; to learn from, also some of what the stages before taught, lest it be forgotten."""
    (say,) = _exercises("say", held_out=held_out)
    judged = GatedEnvironment(say, FullSentences())
    return (judged,) if held_out else (judged, *_maths_code_ttc(held_out))


_ENVIRONMENTS: dict[str, Callable[[bool], tuple[Environment, ...]]] = {
    "rl_warmup": lambda held_out: _exercises("reverse", "sort", "largest", held_out=held_out),
    "rl_adaptive": lambda held_out: _exercises(
        "reverse", "sort", "largest", "add", held_out=held_out
    ),
    "rl_maths_code_ttc": _maths_code_ttc,
    "rl_behavioral": _behavioral,
}


def _supervised(config: ConfigDict, name: str) -> None:
    length, theta, peak, final, steps = {
        "pretrain": (256, 1e4, 6e-3, 2e-3, 100),
        "midtrain": (512, 1e5, 5e-3, 2e-3, 300),
        "sft": (512, 5e5, 4e-3, 2e-4, 400),
    }[name]
    config.model.rope_theta = theta
    config.data.sequence_length = length
    config.data.batch_size = TOKENS_PER_STEP // length
    config.optimizer.peak_learning_rate = peak
    config.optimizer.final_learning_rate = final
    config.train.steps = steps
    config.train.validation_interval = steps // 2
    config.checkpoint.interval = steps // 2


def _reinforced(config: ConfigDict, name: str) -> None:
    config.model.rope_theta = 5e5
    config.data.sequence_length = 256
    config.data.batch_size = 1  # rows are the stage's
    config.optimizer.kind = "adamw"
    config.optimizer.schedule = "constant"
    config.optimizer.peak_learning_rate = 5e-4
    config.optimizer.final_learning_rate = 5e-4
    config.optimizer.warmup_steps = 0
    config.optimizer.weight_decay = 0.0
    config.train.steps = STEPS[name]
    config.checkpoint.interval = 20


def _mixture(name: str, data: Path) -> tuple[str, ...]:
    """What a supervised stage reads, as an override."""
    sources = {
        "pretrain": {"python_stdlib": 1.0},
        "midtrain": {str(data / "traces.jsonl"): 0.8, "python_stdlib": 0.2},
        "sft": {
            str(data / "lessons.jsonl"): 0.55,
            f"aggregation:{data / 'attempts.jsonl'}?subset=4&tail=48": 0.35,
            "python_stdlib": 0.1,
        },
    }
    if name not in sources:
        return ()
    listed = tuple(f"{source}={share}" for source, share in sources[name].items())
    return (f"--config.data.mixture={listed!r}",)


def _votes_and_rsa(stage: str, data: Path, checkpoint: tuple[str, ...]) -> Iterator[CascadeStep]:
    """Three seeds each of two ways to spend 24 rollouts on a problem."""
    prefix = "" if stage == REINFORCED[-1] else f"{stage}_"
    for ttc, method in (("majority", "vote"), ("light", "Markovian RSA")):
        for seed in SEEDS:
            step = f"{prefix}{ttc}_{seed}"
            yield _evaluation(step, ttc, seed, data, checkpoint, f"{stage}: {method}")


def _evaluation(
    step: str, ttc: str, seed: int, data: Path, checkpoint: tuple[str, ...], group: str
) -> CascadeStep:
    problems = f"--config.data={data / 'held_out'}"
    config = ("--config", f"{EVALUATION}:{ttc}", "--ttc", ttc, f"--config.seed={seed}", problems)
    return CascadeStep(step, "experiments.evaluate", (*config, *checkpoint), group)


def _check(name: str) -> None:
    if name not in (*SUPERVISED, *REINFORCED):
        raise ConfigError(f"stage {name!r} is none of: {', '.join((*SUPERVISED, *REINFORCED))}")
