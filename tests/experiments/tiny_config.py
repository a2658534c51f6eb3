"""A config file for runs of a second: a tiny model on generated text."""

from __future__ import annotations

from ml_collections import ConfigDict

from experiments.configs import base


def get_config(name: str = "plain") -> ConfigDict:
    config = base.get_config("nano")
    config.model.vocab_size = 272
    config.model.hidden_size = 16
    config.model.num_layers = 2
    config.model.num_query_heads = 2
    config.model.num_kv_heads = 1
    config.model.head_dim = 8
    config.model.num_experts = 4
    config.model.expert_intermediate_size = 16
    config.model.router_hidden_size = 8
    config.data.source = "synthetic"
    config.data.tokenizer = "bytes"
    config.data.max_bytes = 60_000
    config.data.sequence_length = 32
    config.data.batch_size = 4
    config.data.validation_batches = 2
    config.train.steps = 60
    config.train.validation_interval = 15
    config.train.sample_tokens = 8
    config.optimizer.warmup_steps = 5
    config.checkpoint.interval = 20
    if name == "planned":  # for several processes
        config.data.packing = "planned"
    if name == "misspelt":
        config.model.num_layer = 3
    return config
