"""The settings of one run: what the loop does, and the sections of every other subsystem."""

from __future__ import annotations

import dataclasses

from zaya_jax import presets
from zaya_jax.checkpoint.settings import CheckpointConfig
from zaya_jax.config import ConfigError, ModelConfig
from zaya_jax.data.config import DataConfig
from zaya_jax.lora_settings import LoraConfig
from zaya_jax.optimizer.settings import OptimizerConfig
from zaya_jax.parallel.settings import MeshConfig
from zaya_jax.training.watchdog import GuardConfig
from zaya_jax.training.writers import WriterConfig


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """What the training loop does.

    Raises:
      ConfigError: on construction, when a field breaks a rule.
    """

    steps: int = 1_000  # updates in the whole run
    microbatches: int = 1  # parts a step's batch is cut into, to save memory; same update
    validation_interval: int = 100  # steps between validations; 0 = only at the start and end
    probe_interval: int = 100  # steps between timings of each device of many processes; 0 = none
    z_loss_weight: float = 0.0  # weight of mean(log Z squared), which keeps logits small; 0 = off
    seed: int = 0  # of the initial parameters and of sampling
    sample_prompt: str = "def "  # continued by the model at the end of the run
    sample_tokens: int = 64  # length of that continuation; 0 = no sample

    def __post_init__(self) -> None:
        rules = {
            "steps": (1, "must be at least 1"),
            "microbatches": (1, "must be at least 1"),
            "validation_interval": (0, "must not be negative"),
            "probe_interval": (0, "must not be negative"),
            "z_loss_weight": (0, "must not be negative"),
            "seed": (0, "must not be negative"),
            "sample_tokens": (0, "must not be negative"),
        }
        for name, (least, rule) in rules.items():
            if not getattr(self, name) >= least:
                raise ConfigError(f"train.{name}={getattr(self, name)!r}: {rule}")


@dataclasses.dataclass(frozen=True)
class ProfileConfig:
    """When to record a profile (read it with xprof or TensorBoard's profile tab).

    Raises:
      ConfigError: on construction, when a field breaks a rule.
    """

    start: int = 0  # first step to record, counted from 1; 0 = no profile
    steps: int = 3  # how many steps to record

    def __post_init__(self) -> None:
        if self.start < 0 or self.steps < 1:
            raise ConfigError(
                f"profile.start={self.start!r}, profile.steps={self.steps!r}: start must not be "
                "negative and steps must be at least 1"
            )


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run. Each section is documented at its own class."""

    model: ModelConfig = dataclasses.field(default_factory=presets.nano)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    lora: LoraConfig = dataclasses.field(default_factory=LoraConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    guard: GuardConfig = dataclasses.field(default_factory=GuardConfig)
    log: WriterConfig = dataclasses.field(default_factory=WriterConfig)
    profile: ProfileConfig = dataclasses.field(default_factory=ProfileConfig)
    init_from: str = ""  # run or checkpoint folder to take parameters from; "" = initialise

    def __post_init__(self) -> None:
        batch, parts = self.data.batch_size, self.train.microbatches
        if batch % parts != 0:
            raise ConfigError(
                f"data.batch_size={batch}, train.microbatches={parts}: the microbatches must "
                "divide the batch"
            )
        if self.lora.rank and not self.init_from:
            raise ConfigError(
                f"lora.rank={self.lora.rank} adapts a trained model: say which with init_from"
            )
        if self.data.sequence_length > self.model.max_position_embeddings:
            raise ConfigError(
                f"data.sequence_length={self.data.sequence_length}: must not exceed "
                f"model.max_position_embeddings={self.model.max_position_embeddings}"
            )
