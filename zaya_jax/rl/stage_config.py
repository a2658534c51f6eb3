"""Sizes and rules of a stage."""

from __future__ import annotations

import dataclasses

from zaya_jax.rl.aggregation import Aggregation
from zaya_jax.rl.dynamic_sampling import GroupFilter
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.prompts import PromptStyle
from zaya_jax.rl.rewards import RewardConfig


@dataclasses.dataclass(frozen=True)
class StageConfig:
    """Settings of a stage.

    Raises:
      RLError: on construction, when a number is too small.
    """

    prompts: int = 128  # groups in a batch
    group_size: int = 16  # rollouts of a problem
    row_length: int = 131_072  # tokens of a packed row
    rows_per_microbatch: int = 1  # rows in one forward pass
    aggregation: Aggregation = Aggregation.SEQ_MEAN_TOKEN_SUM_NORM
    norm: int = 81_920  # the constant S of that aggregation
    group_filter: GroupFilter = GroupFilter.TASK  # which groups are trained on
    most_rounds: int = 8  # draws before a batch is trained on as it is
    router_replay: bool = True  # pin the sampler's routes in the trainer
    prompt: PromptStyle = PromptStyle.THINKING  # what surrounds a problem
    shuffle_rewards: bool = (
        False  # a control: rewards trade places in each group, nothing is learnt
    )
    rewards: RewardConfig = dataclasses.field(default_factory=RewardConfig)
    score_seconds: float = 600.0  # without any score; then the verifier hangs, its group is dropped
    seed: int = 0  # of problems and samples

    def __post_init__(self) -> None:
        least = {"prompts": 1, "group_size": 2, "row_length": 2, "rows_per_microbatch": 1}
        for name, value in {**least, "norm": 1, "most_rounds": 1}.items():
            if getattr(self, name) < value:
                raise RLError(f"stage: {name}={getattr(self, name)!r}: must be at least {value}")
        if not self.score_seconds > 0:
            raise RLError(f"stage: score_seconds={self.score_seconds!r}: must be positive")
