"""A small model that learns to think about sums and to aggregate attempts at them, on a CPU.

    make aggregation-small      the tokenizer, this run, and single samples, votes and Markovian RSA
    python -m experiments.sft --config experiments/configs/aggregation_small.py --workdir DIR

Sums of four one-digit numbers with worked traces, and aggregation examples made of them: the tails
of four attempts, right and wrong ones, then the right solution (zaya_jax/data/aggregation.py). Of
two-digit numbers there are aggregation examples alone: too hard to work out for a model so small,
they teach it to read the attempts. `experiments/configs/evaluation/aggregation_small.py` asks about
sums that are not among these. Results: docs/inference.md.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from experiments.configs import base

_SUMS = "min_terms=4&max_terms=4&boxed=1"
_ATTEMPTS = f"aggregation:chain_sum?subset=4&tail=32&{_SUMS}"
PROBLEMS = f"reasoning_gym:chain_sum?size=14000&seed=1&{_SUMS}&max_digits=1"
ATTEMPTS = f"{_ATTEMPTS}&size=5000&seed=14001&max_digits=1"
LARGER_ATTEMPTS = f"{_ATTEMPTS}&size=5000&seed=1&min_digits=2&max_digits=2"
TOKENIZER = "runs/aggregation/tokenizer.json"  # `make aggregation-small` learns it from these


def get_config(name: str = "") -> ConfigDict:
    """The whole run: a model of 1.2 million parameters, 440 steps of 2,048 tokens."""
    config = base.get_config("nano")
    model = config.model
    model.vocab_size = 640
    model.hidden_size = 128
    model.num_layers = 3
    model.num_experts = 4
    model.expert_intermediate_size = 192
    model.initializer_stddev = 0.07
    model.expert_dispatch = "dense"
    config.data.tokenizer = TOKENIZER
    config.data.packing = "planned"
    config.data.max_bytes = None
    config.data.mixture = (f"{PROBLEMS}=0.4", f"{ATTEMPTS}=0.25", f"{LARGER_ATTEMPTS}=0.35")
    config.data.sequence_length = 512
    config.data.batch_size = 4
    config.data.validation_fraction = 0.02
    config.data.validation_batches = 4
    config.optimizer.kind = "muon"
    config.optimizer.warmup_steps = 20
    config.optimizer.peak_learning_rate = 6e-3
    config.optimizer.final_learning_rate = 5e-4
    config.train.steps = 440
    config.train.sample_tokens = 0
    config.train.validation_interval = 110
    config.checkpoint.interval = 110
    return config
