"""From raw text to a model that was reinforced, in miniature, on two CPU cores.

    python -m experiments.cascade --config experiments/configs/cascade_small.py --workdir DIR

and with `--dry-run` the commands, without running them. One stage of RL by itself:

    python -m experiments.rl --config experiments/configs/cascade_small.py:rl_warmup --workdir DIR

| step | what it does | context |
| --- | --- | --- |
| pretrain | Python's standard library | 256 |
| midtrain | sums with worked traces, library text | 512 |
| sft | sums with worked traces in chat form | 1,024 |
| rl_warmup | sums of two numbers, rewarded for the right answer alone | 64 |
| rl_adaptive | longer sums as the policy gets better | 96 |

The first three are those of `small.py`. RL problems are of the kind that SFT learnt from; each
stage is measured on problems that none of them trained on. 60 steps of so small batches are enough
to see a stage work, not to learn arithmetic: in our trials the solve rate stayed where SFT left it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ml_collections import ConfigDict

from experiments.cascade import CascadeStep
from experiments.configs import small
from zaya_jax.config import ConfigError
from zaya_jax.inference.settings import EngineSettings
from zaya_jax.rl.environments.source_problems import SourceProblems
from zaya_jax.rl.length_reward import LengthRewardConfig
from zaya_jax.rl.prompts import PromptStyle
from zaya_jax.rl.rewards import RewardConfig
from zaya_jax.rl.setup import RLSetup
from zaya_jax.rl.stage_config import StageConfig

SUPERVISED = ("pretrain", "midtrain", "sft")
RL_STEPS = {"rl_warmup": 60, "rl_adaptive": 60}
PROMPT_TOKENS, RESPONSE_TOKENS = 128, 64
RL_SEED = 40_000  # of problems that no supervised stage has seen


def get_steps(workdir: Path) -> Iterator[CascadeStep]:
    """All steps, each from the one before."""
    before: tuple[str, ...] = ()
    for name in (*SUPERVISED, *RL_STEPS):
        is_rl = name in RL_STEPS
        module = "experiments.rl" if is_rl else f"experiments.{name}"
        file = "cascade_small.py" if is_rl else "small.py"
        config = ("--config", f"{Path(__file__).parent / file}:{name}")
        yield CascadeStep(name, module, (*config, *before))
        before = (f"--config.init_from={workdir / name}",)


def get_config(name: str = "rl_warmup") -> ConfigDict:
    """Model, optimiser and run of an RL stage.

    Raises:
      ConfigError: for an unknown stage.
    """
    _check(name)
    config = small.get_config("sft")
    config.optimizer.kind = "adamw"
    config.optimizer.schedule = "constant"
    config.optimizer.peak_learning_rate = 2e-4
    config.optimizer.final_learning_rate = 2e-4
    config.optimizer.warmup_steps = 0
    config.optimizer.weight_decay = 0.0
    config.data.batch_size = 1  # rows are the stage's
    config.train.steps = RL_STEPS[name]
    config.checkpoint.interval = 20
    return config


def get_rl(name: str = "rl_warmup") -> RLSetup:
    """Environments and rules of an RL stage: 24 problems of 8 rollouts a step.

    Raises:
      ConfigError: for an unknown stage.
    """
    _check(name)
    return RLSetup(
        stage=StageConfig(
            prompts=24,
            group_size=8,
            row_length=256,
            rows_per_microbatch=16,
            norm=RESPONSE_TOKENS,
            prompt=PromptStyle.THINKING,
            rewards=RewardConfig(length=LengthRewardConfig(coefficient=0.0)),
        ),
        environments=lambda: (_sums(held_out=False),),
        held_out=lambda: (_sums(held_out=True),),
        hardest=0 if name == "rl_warmup" else None,
        most_prompt_tokens=PROMPT_TOKENS,
        most_response_tokens=RESPONSE_TOKENS,
        engine=EngineSettings(
            slots=192,
            page_size=32,
            cache_tokens=192 * (PROMPT_TOKENS + RESPONSE_TOKENS),
            prefill_chunk=PROMPT_TOKENS,
            prefill_rows=32,
            least_rows=192,
            least_table=8,
            decode_steps=16,
        ),
        evaluation_interval=20,
        evaluation_problems=128,
    )


def _sums(*, held_out: bool) -> SourceProblems:
    """Sums of 2 numbers, then of 3, then of 4."""
    sources = tuple(
        f"reasoning_gym:chain_sum?size=4000&seed={RL_SEED + 4_000 * level}"
        f"&min_terms={least}&max_terms={most}&max_digits=1"
        for level, (least, most) in enumerate(((2, 2), (3, 3), (4, 4)))
    )
    return SourceProblems("sums", sources, held_out=held_out, validation_fraction=0.1)


def _check(name: str) -> None:
    if name not in RL_STEPS:
        raise ConfigError(f"RL stage {name!r} is none of: {', '.join(RL_STEPS)}")
