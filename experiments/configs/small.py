"""The whole recipe in miniature: pretrain, midtrain, SFT, on two CPU cores, with real data.

    python -m experiments.recipe --workdir runs/recipe         all three, with results after each
    python -m experiments.pretrain --config experiments/configs/small.py:pretrain --workdir DIR

| stage | context | RoPE base | data |
| --- | --- | --- | --- |
| pretrain | 256 | 1e4 | Python's standard library |
| midtrain | 512 | 1e5 | sums with worked traces 70%, library text 30%, by tokens |
| sft | 1,024 | 5e5 | sums with worked traces 90%, library text 10% |

The problems are reasoning_gym's chain sums (needs `pip install 'zaya_jax[data]'`). Text is read as
bytes: digits and signs are then tokens of their own, and the head is small.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from experiments.configs import base
from zaya_jax.config import ConfigError

TEXT = "python_stdlib"
PROBLEMS = "reasoning_gym:chain_sum?size=30000&seed=1&min_terms=2&max_terms=3&max_digits=1"

_TOKENS_PER_STEP = 1_024


def get_config(name: str = "pretrain") -> ConfigDict:
    """One stage.

    Raises:
      ConfigError: for an unknown stage.
    """
    if name not in _STAGES:
        raise ConfigError(f"stage {name!r} is none of: {', '.join(_STAGES)}")
    config = base.get_config("nano")
    model = config.model
    model.vocab_size = 272
    model.hidden_size = 128
    model.num_layers = 3
    model.expert_intermediate_size = 192
    model.initializer_stddev = 0.07
    config.data.tokenizer = "bytes"
    config.data.packing = "planned"
    config.data.max_bytes = 2_000_000
    config.data.validation_fraction = 0.02
    config.data.validation_batches = 8
    config.optimizer.kind = "muon"
    config.optimizer.warmup_steps = 20
    config.train.sample_tokens = 0
    _STAGES[name](config)
    config.data.batch_size = _TOKENS_PER_STEP // config.data.sequence_length
    config.train.validation_interval = config.train.steps // 2
    config.checkpoint.interval = config.train.steps // 2
    return config


def _pretrain(config: ConfigDict) -> None:
    config.data.source = TEXT
    config.data.sequence_length = 256
    config.model.rope_theta = 1e4
    config.optimizer.peak_learning_rate = 6e-3
    config.optimizer.final_learning_rate = 2e-3
    config.train.steps = 200


def _midtrain(config: ConfigDict) -> None:
    config.data.mixture = (f"{PROBLEMS}=0.7", f"{TEXT}=0.3")
    config.data.sequence_length = 512
    config.model.rope_theta = 1e5
    config.optimizer.peak_learning_rate = 4e-3
    config.optimizer.final_learning_rate = 2e-3
    config.train.steps = 260


def _sft(config: ConfigDict) -> None:
    config.data.mixture = (f"{PROBLEMS}=0.9", f"{TEXT}=0.1")
    config.data.sequence_length = 1_024
    config.model.rope_theta = 5e5
    config.optimizer.peak_learning_rate = 3e-3
    config.optimizer.final_learning_rate = 1e-4
    config.train.steps = 160


_STAGES = {"pretrain": _pretrain, "midtrain": _midtrain, "sft": _sft}
