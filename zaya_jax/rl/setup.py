"""What a config file of an RL run says besides the usual sections."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax

from zaya_jax.inference.settings import EngineSettings
from zaya_jax.rl.cold_start import ColdStart
from zaya_jax.rl.curriculum.before_stage import CalibrationPlan
from zaya_jax.rl.device_split import DeviceSplit, split_devices
from zaya_jax.rl.environments.protocol import Environment
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.losses import PolicyLossConfig
from zaya_jax.rl.pipeline import PipelineConfig
from zaya_jax.rl.refilter import RefilterPlan
from zaya_jax.rl.stage_config import StageConfig


@dataclasses.dataclass(frozen=True)
class RLSetup:
    """The parts of a stage.

    Attributes:
      stage: sizes and rules of a step.
      loss: of the policy.
      engine: sizes of the inference engine that samples; without, the whole model runs on the whole
        sequence for every token, which suits only the smallest models.
      pipeline: rollouts and training at the same time, which needs an engine; without, every step
        is exactly on-policy.
      environments: makes those to learn from; called when a run starts, not by a dry run, so that
        a config may name files that are not there yet.
      held_out: makes those to measure on, never learnt from.
      shares: of the groups, by environment name; those not named have 1.
      difficulty: at which every environment starts.
      refilter: drops problems that the policy the stage begins with always or never solves.
      calibration: finds where each is to start instead, with the policy that the stage begins with.
      hardest: highest difficulty the curriculum may reach.
      most_prompt_tokens: longest prompt.
      most_response_tokens: longest response.
      sampler_dtype: of the sampler's activations; none: as the trainer's.
      cold_start: what comes before, for a policy that starts from nothing.
      evaluation_interval: steps between two measurements.
      evaluation_problems: of each environment, in each of them.
      evaluation_difficulty: of these problems, or an environment's hardest if that is less; none:
        the difficulty at which the curriculum starts.

    Raises:
      RLError: on construction, when the lengths do not fit a row, or a pipeline has no engine.
    """

    stage: StageConfig
    environments: Callable[[], tuple[Environment, ...]]
    most_prompt_tokens: int
    most_response_tokens: int
    loss: PolicyLossConfig = dataclasses.field(default_factory=PolicyLossConfig)
    sampler_dtype: str | None = None
    engine: EngineSettings | None = None
    pipeline: PipelineConfig | None = None
    held_out: Callable[[], tuple[Environment, ...]] = tuple
    shares: Mapping[str, float] = dataclasses.field(default_factory=dict)
    difficulty: int = 0
    refilter: RefilterPlan | None = None
    calibration: CalibrationPlan | None = None
    hardest: int | None = None
    cold_start: ColdStart | None = None
    evaluation_interval: int = 10
    evaluation_problems: int = 256
    evaluation_difficulty: int | None = None

    def __post_init__(self) -> None:
        self._check_engine()
        longest = self.most_prompt_tokens + self.most_response_tokens
        if longest > self.stage.row_length:
            raise RLError(
                f"most_prompt_tokens={self.most_prompt_tokens} and "
                f"most_response_tokens={self.most_response_tokens} do not fit "
                f"row_length={self.stage.row_length}"
            )

    def _check_engine(self) -> None:
        if self.pipeline is not None and self.engine is None:
            raise RLError("setup: a pipeline needs an engine: set engine=EngineSettings(...)")

    def split(self, devices: Sequence[jax.Device]) -> DeviceSplit | None:
        """How the pipeline shares out the devices; None where all are everybody's.

        Raises:
          ConfigError: when none is left for the trainer.
        """
        if self.pipeline is None or not self.worker_devices:
            return None
        workers = self.pipeline.workers
        return split_devices(devices, workers, self.worker_devices // workers)

    @property
    def worker_devices(self) -> int:
        """Devices that are the workers' and not the trainer's; 0 where all are everybody's."""
        if self.pipeline is None or self.engine is None or not self.pipeline.own_devices:
            return 0
        return self.pipeline.workers * self.engine.mesh_data * self.engine.mesh_expert
