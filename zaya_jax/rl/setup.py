"""What a config file of an RL run says besides the usual sections."""

from __future__ import annotations

import dataclasses

from zaya_jax.rl.cold_start import ColdStart
from zaya_jax.rl.environments.protocol import Environment
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.losses import PolicyLossConfig
from zaya_jax.rl.stage import StageConfig


@dataclasses.dataclass(frozen=True)
class RLSetup:
    """The parts of a stage.

    Attributes:
      stage: sizes and rules of a step.
      loss: of the policy.
      environments: problems to learn from.
      held_out: problems to measure on, never learnt from.
      difficulty: at which every environment starts.
      hardest: highest difficulty the curriculum may reach.
      most_prompt_tokens: longest prompt.
      most_response_tokens: longest response.
      cold_start: what comes before, for a policy that starts from nothing.
      evaluation_interval: steps between two measurements.
      evaluation_problems: of each environment, in each of them.

    Raises:
      RLError: on construction, when the lengths do not fit a row.
    """

    stage: StageConfig
    environments: tuple[Environment, ...]
    most_prompt_tokens: int
    most_response_tokens: int
    loss: PolicyLossConfig = dataclasses.field(default_factory=PolicyLossConfig)
    held_out: tuple[Environment, ...] = ()
    difficulty: int = 0
    hardest: int | None = None
    cold_start: ColdStart | None = None
    evaluation_interval: int = 10
    evaluation_problems: int = 256

    def __post_init__(self) -> None:
        longest = self.most_prompt_tokens + self.most_response_tokens
        if longest > self.stage.row_length:
            raise RLError(
                f"most_prompt_tokens={self.most_prompt_tokens} and "
                f"most_response_tokens={self.most_response_tokens} do not fit "
                f"row_length={self.stage.row_length}"
            )
