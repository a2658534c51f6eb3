"""A small ZAYA model learns the text of the Python standard library on a CPU.

python -m experiments.pretrain --config experiments/configs/demo.py --workdir /tmp/zaya-demo
"""

from __future__ import annotations

from ml_collections import ConfigDict

from experiments.configs import base


def get_config() -> ConfigDict:
    """The demo."""
    config = base.get_config("nano")
    config.train.steps = 200
    config.train.validation_interval = 50
    config.checkpoint.interval = 50
    config.optimizer.peak_learning_rate = 3e-3
    config.optimizer.final_learning_rate = 3e-4
    config.optimizer.warmup_steps = 20
    return config
