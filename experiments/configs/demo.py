"""A small ZAYA model learns the text of the Python standard library on a CPU.

    python -m experiments.pretrain --config experiments/configs/demo.py --workdir /tmp/zaya-demo

Hardware: two CPU cores, 2 GB of memory. Time: 2 min 33 s, 208 s of CPU time, on a 2-core AMD EPYC
virtual machine; half a minute of it is compiling.
Expected: validation loss from 9.3 to 5.22 nats per token (± 0.05: the text differs between Python
versions), 0.90 below the unigram entropy of the same text.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from experiments.configs import base


def get_config() -> ConfigDict:
    """A model smaller than `nano`, 280 steps of 1,024 tokens."""
    config = base.get_config("nano")
    config.model.hidden_size = 128
    config.model.num_layers = 3
    config.model.expert_intermediate_size = 192
    # Near 1/sqrt(hidden_size): the usual 0.02 costs 0.3 nats in so short a run.
    config.model.initializer_stddev = 0.07
    # Small batches and short windows: many updates for the few tokens a CPU can read.
    config.data.sequence_length = 128
    config.data.batch_size = 8
    config.data.validation_batches = 16
    config.optimizer.peak_learning_rate = 5e-3
    config.optimizer.final_learning_rate = 2e-4
    config.optimizer.warmup_steps = 20
    config.train.steps = 280
    config.train.validation_interval = 70
    config.checkpoint.interval = 70
    return config
