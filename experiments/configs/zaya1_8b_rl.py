"""The RL stages of ZAYA1-8B, after `zaya1_8b.py:sft131k`: `zaya1_8b.py:NAME` names them too.

| stage | learns from | steps |
| --- | --- | --- |
| `rl_warmup` | reasoning-gym, competition maths | 232 |
| `rlve` | the environments of an RLVE-Gym checkout, difficulty moved while training | 400 |
| `math_code_ttc_1` | maths, code, code-auxiliary tasks, aggregation prompts | 384 |
| `math_code_ttc_2` | the same with other shares | 464 |
| `behavioral` | preferences by a reward model, instructions it judges if followed | 384 |

    python -m experiments.rl --config experiments/configs/zaya1_8b_rl.py:rlve --workdir DIR

Published (arXiv 2605.05365): steps, 128 prompts of 16 rollouts, shares of the data, responses up to
81,920 and prompts up to 20,480 tokens, DPPO Binary-TV with 0.1, MaxRL (GRPO in the last stage), no
KL, Muon without momentum, learning rates between 2e-6 and 1e-5 with the least in the last stage,
weights to the rollout workers every 2 updates, training from 2 waiting batches, 131,072 tokens a
device. Ours: which stage has which learning rate, the ramp of the length reward, numbers of devices
and workers, sizes of the engine, and responses of 81,920 tokens in the whole warm-up, of which the
report runs the first half at 65,000. Puzzles of the Enigmata collection are left out.

Data lies under `data/rl/`: `maths.jsonl`, `maths_held_out.jsonl`, `code.jsonl`, `preferences.jsonl`
in the schemas of `docs/rl.md`, `maths_candidates.jsonl` with earlier responses, and the checkout
`RLVE`. The reward model is any OpenAI-compatible server at `REWARD_URL`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from ml_collections import ConfigDict

from experiments.configs import base
from zaya_jax.config import ConfigError
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.inference.settings import EngineSettings
from zaya_jax.rl.environments.aggregation import (
    AggregationConfig,
    AggregationEnvironment,
    CandidateView,
    candidates_from_jsonl,
)
from zaya_jax.rl.environments.code import CodeEnvironment, CodeRecord
from zaya_jax.rl.environments.code_auxiliary.falsification import Falsification
from zaya_jax.rl.environments.code_auxiliary.input_prediction import InputPrediction
from zaya_jax.rl.environments.code_auxiliary.output_prediction import OutputPrediction
from zaya_jax.rl.environments.code_auxiliary.reconstruction import Reconstruction
from zaya_jax.rl.environments.instructions import InstructionEnvironment
from zaya_jax.rl.environments.maths import MathsEnvironment, MathsRecord
from zaya_jax.rl.environments.preferences import (
    GatedEnvironment,
    PreferenceEnvironment,
    PreferenceRecord,
)
from zaya_jax.rl.environments.protocol import Environment
from zaya_jax.rl.environments.reasoning_gym import ReasoningGym
from zaya_jax.rl.environments.record_files import from_jsonl
from zaya_jax.rl.environments.reward_server import RewardServer
from zaya_jax.rl.environments.rlve_gym import RLVEGym
from zaya_jax.rl.length_reward import LengthRewardConfig
from zaya_jax.rl.pipeline import PipelineConfig, WorkerPlace
from zaya_jax.rl.ray_engine import ActorResources
from zaya_jax.rl.rewards import RewardConfig
from zaya_jax.rl.sandbox import Sandbox
from zaya_jax.rl.setup import RLSetup
from zaya_jax.rl.stage_config import StageConfig

DATA = "data/rl"
TOKENIZER = "tokenizer.json"  # of the released model
REWARD_URL, REWARD_MODEL = "http://localhost:8001/v1", "judge"
PROMPT_TOKENS, RESPONSE_TOKENS, ROW_TOKENS = 20_480, 81_920, 131_072
TRAINER_DEVICES, ROLLOUT_WORKERS = 64, 192  # three times as many sample as train

Environments = tuple[Environment, ...]


class _Stage(NamedTuple):
    steps: int
    learning_rate: float
    advantage: str
    length: LengthRewardConfig
    environments: Callable[[], Environments]
    shares: dict[str, float]  # of the groups; what is not named has 1


def get_config(name: str = "rl_warmup") -> ConfigDict:
    """Model, optimiser and run of one stage.

    Raises:
      ConfigError: for an unknown stage.
    """
    stage = _stage(name)
    config = base.get_config("zaya1_8b")
    config.model.remat = "full"
    config.data.tokenizer = TOKENIZER
    config.optimizer.kind = "muon"
    config.optimizer.muon_momentum = 0.0
    config.optimizer.muon_dtype = "bfloat16"
    config.optimizer.schedule = "constant"
    config.optimizer.peak_learning_rate = stage.learning_rate
    config.optimizer.final_learning_rate = stage.learning_rate
    config.optimizer.warmup_steps = 0
    config.optimizer.weight_decay = 0.0
    config.mesh.data, config.mesh.fsdp = 1, TRAINER_DEVICES
    config.train.steps = stage.steps
    config.checkpoint.interval = 20
    return config


def get_rl(name: str = "rl_warmup") -> RLSetup:
    """Environments and rules of one stage.

    Raises:
      ConfigError: for an unknown stage.
    """
    stage = _stage(name)
    return RLSetup(
        stage=StageConfig(
            rows_per_microbatch=TRAINER_DEVICES,
            row_length=ROW_TOKENS,
            rewards=RewardConfig(advantage=stage.advantage, length=stage.length),
        ),
        environments=stage.environments,
        held_out=held_out,
        shares=stage.shares,
        most_prompt_tokens=PROMPT_TOKENS,
        most_response_tokens=RESPONSE_TOKENS,
        engine=EngineSettings(
            slots=32,
            page_size=64,
            cache_tokens=32 * (PROMPT_TOKENS + RESPONSE_TOKENS),
            prefill_chunk=4_096,
            decode_steps=16,
        ),
        pipeline=PipelineConfig(
            workers=ROLLOUT_WORKERS,
            place=WorkerPlace.RAY,
            resources=ActorResources(cpus=4, gpus=1),
            groups_in_flight=2,
        ),
        evaluation_interval=20,
    )


def reasoning_and_maths() -> Environments:
    """The warm-up's."""
    gym = ReasoningGym()
    return (*(gym.environment(name) for name in gym.names), maths())


def adaptive() -> Environments:
    """Every environment of the RLVE-Gym checkout."""
    gym = RLVEGym(f"{DATA}/RLVE")
    return tuple(gym.environment(name) for name in gym.names)


def maths_and_code() -> Environments:
    """Maths, code, the auxiliary tasks, and maths again below earlier candidates."""
    sandbox, records = Sandbox(), from_jsonl(f"{DATA}/code.jsonl", CodeRecord)
    tokenizer, candidates = load_tokenizer(TOKENIZER), f"{DATA}/maths_candidates.jsonl"
    below = functools.partial(
        AggregationEnvironment,
        maths(),
        candidates_from_jsonl(candidates),
        encode=tokenizer.encode,
        decode=tokenizer.decode,
    )
    auxiliary = (OutputPrediction, InputPrediction, Reconstruction, Falsification)
    return (
        maths(),
        CodeEnvironment(records, sandbox),
        *(make(records, sandbox) for make in auxiliary),
        *(below(config=AggregationConfig(view=view)) for view in CandidateView),
    )


def behaviour() -> Environments:
    """Preferences, and instructions that pay only once they are followed."""
    judge = RewardServer(REWARD_URL, REWARD_MODEL)
    prompts = from_jsonl(f"{DATA}/preferences.jsonl", PreferenceRecord)
    return PreferenceEnvironment(prompts, judge), GatedEnvironment(InstructionEnvironment(), judge)


def maths() -> MathsEnvironment:
    """Competition maths."""
    return MathsEnvironment(from_jsonl(f"{DATA}/maths.jsonl", MathsRecord))


def held_out() -> Environments:
    """What every stage is measured on."""
    records = from_jsonl(f"{DATA}/maths_held_out.jsonl", MathsRecord)
    return (MathsEnvironment(records, name="maths, held out"),)


# Shares of the report among the kinds that are here; a kind of several environments splits its own.
_AUXILIARY = ("code_output", "code_input", "code_reconstruction", "code_falsification")


def _shares(code: float, auxiliary: float, maths: float, below: float) -> dict[str, float]:
    return {
        "code": code,
        **dict.fromkeys(_AUXILIARY, auxiliary / len(_AUXILIARY)),
        "maths": maths,
        **{f"maths+{view}": below / len(CandidateView) for view in CandidateView},
    }


_RISING = LengthRewardConfig(ramp_steps=200, coefficient=0.5)
_FULL, _NONE = LengthRewardConfig(), LengthRewardConfig(coefficient=0.0)
_STAGES = {
    "rl_warmup": _Stage(232, 1e-5, "maxrl", _RISING, reasoning_and_maths, {"maths": 40.0}),
    "rlve": _Stage(400, 1e-5, "maxrl", LengthRewardConfig(coefficient=0.5), adaptive, {}),
    "math_code_ttc_1": _Stage(
        384, 5e-6, "maxrl", _FULL, maths_and_code, _shares(20.3, 33.4, 33.8, 12.5)
    ),
    "math_code_ttc_2": _Stage(
        464, 5e-6, "maxrl", _FULL, maths_and_code, _shares(31.4, 26.8, 22.5, 19.4)
    ),
    "behavioral": _Stage(384, 2e-6, "grpo", _NONE, behaviour, {}),
}
NAMES = tuple(_STAGES)


def _stage(name: str) -> _Stage:
    if name not in _STAGES:
        raise ConfigError(f"RL stage {name!r} is none of: {', '.join(_STAGES)}")
    return _STAGES[name]
