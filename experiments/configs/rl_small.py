"""A small policy learns three tasks on digits from rewards alone, on a CPU.

    python -m experiments.rl --config experiments/configs/rl_small.py --workdir /tmp/zaya-rl

The policy first imitates a teacher who is right in three answers out of ten (reverse the digits,
sort them, name the largest), then learns from its own rollouts. A fifth of all problems is held
out. Variants, as `rl_small.py:NAME`:

| name | what differs |
| --- | --- |
| `pipeline` | the inference engine samples in a thread of its own while the policy is trained |
| `ray` | the same with three engines in Ray actors (`pip install 'zaya_jax[ray]'`) |
| `shuffled` | every rollout gets the reward of another one of its group: it must not learn |
"""

from __future__ import annotations

from ml_collections import ConfigDict

from experiments.configs import base
from zaya_jax.config import ConfigError
from zaya_jax.inference.settings import EngineSettings
from zaya_jax.rl.aggregation import Aggregation
from zaya_jax.rl.environments.practice import TASKS, PracticeEnvironment
from zaya_jax.rl.length_reward import LengthRewardConfig
from zaya_jax.rl.pipeline import PipelineConfig, WhenFull, WorkerPlace
from zaya_jax.rl.prompts import PromptStyle
from zaya_jax.rl.ray_engine import ActorResources
from zaya_jax.rl.rewards import RewardConfig
from zaya_jax.rl.setup import ColdStart, RLSetup
from zaya_jax.rl.stage_config import StageConfig

PROMPT_TOKENS, RESPONSE_TOKENS = 16, 6
GROUP_SIZE = 8
VARIANTS = ("", "pipeline", "ray", "shuffled")


def _engine(groups: int) -> EngineSettings:
    """An engine with a row for each response of so many groups, and one program for them."""
    rows = groups * GROUP_SIZE
    return EngineSettings(
        slots=rows,
        page_size=8,
        cache_tokens=rows * 24,
        prefill_chunk=16,
        prefill_rows=rows,
        decode_steps=RESPONSE_TOKENS,
        least_rows=rows,
        prefix_cache=False,
    )


# Sampler and trainer share two cores here: workers must not fill a buffer that nobody empties, and
# each step of an engine costs the same for few responses as for many.
_PIPELINES = {
    "pipeline": PipelineConfig(groups_in_flight=16, when_full=WhenFull.WAIT),
    "ray": PipelineConfig(
        workers=3,
        place=WorkerPlace.RAY,
        resources=ActorResources(cpus=0.5),
        groups_in_flight=6,
        when_full=WhenFull.WAIT,
    ),
}


def get_config(name: str = "") -> ConfigDict:
    """The model, the optimiser of the reinforcement, and how long it runs."""
    config = base.get_config("nano")
    config.model.vocab_size = 272  # bytes and a few markers
    config.model.hidden_size = 64
    config.model.num_layers = 2
    config.model.num_query_heads = 4
    config.model.num_kv_heads = 2
    config.model.head_dim = 16
    config.model.num_experts = 4
    config.model.expert_intermediate_size = 128
    config.model.router_hidden_size = 32
    config.model.max_position_embeddings = 64
    config.model.initializer_stddev = 0.1
    config.model.activation_dtype = "float32"
    config.model.expert_dispatch = "dense"
    config.data.tokenizer = "bytes"
    config.data.sequence_length = 64
    config.optimizer.schedule = "constant"
    config.optimizer.peak_learning_rate = 1e-3
    config.optimizer.final_learning_rate = 1e-3
    config.optimizer.warmup_steps = 0
    config.optimizer.weight_decay = 0.0
    config.train.steps = 120
    config.checkpoint.interval = 20
    return config


def get_rl(name: str = "") -> RLSetup:
    """The stage: 16 problems of 8 rollouts a step.

    Raises:
      ConfigError: for an unknown variant.
    """
    if name not in VARIANTS:
        raise ConfigError(f"RL variant {name!r} is none of: {', '.join(filter(None, VARIANTS))}")
    pipeline = _PIPELINES.get(name)
    return RLSetup(
        stage=StageConfig(
            prompts=16,
            group_size=GROUP_SIZE,
            row_length=64,
            rows_per_microbatch=20,
            aggregation=Aggregation.SEQ_MEAN_TOKEN_SUM_NORM,
            norm=RESPONSE_TOKENS,
            prompt=PromptStyle.PLAIN,
            shuffle_rewards=name == "shuffled",
            # All right answers to these tasks are equally long.
            rewards=RewardConfig(advantage="maxrl", length=LengthRewardConfig(coefficient=0.0)),
        ),
        engine=_engine(pipeline.groups_in_flight) if pipeline else None,
        pipeline=pipeline,
        environments=environments,
        held_out=lambda: environments(held_out=True),
        most_prompt_tokens=PROMPT_TOKENS,
        most_response_tokens=RESPONSE_TOKENS,
        hardest=0,
        cold_start=ColdStart(
            steps=500, batch=64, learning_rate=4e-3, right_share=0.3, environments=environments()
        ),
    )


def environments(*, held_out: bool = False) -> tuple[PracticeEnvironment, ...]:
    """The three tasks."""
    return tuple(PracticeEnvironment(task, held_out=held_out) for task in TASKS)
