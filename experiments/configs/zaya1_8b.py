"""The stages of ZAYA1-8B: published figures where there are any, our choices elsewhere.

    python -m experiments.pretrain --config experiments/configs/zaya1_8b.py:pretrain1 --workdir DIR
    python -m experiments.pretrain --config experiments/configs/zaya1_8b.py:pretrain2 …
    python -m experiments.midtrain --config experiments/configs/zaya1_8b.py:midtrain32k …
    python -m experiments.sft      --config experiments/configs/zaya1_8b.py:sft131k …
    python -m experiments.rl       --config experiments/configs/zaya1_8b.py:rl_warmup …

each with `--config.init_from=` the stage before. Hardware: a cluster; on one machine use --dry-run.
The RL stages are described in `zaya1_8b_rl.py`, the supervised ones here.

Published (arXiv 2605.05365): model, contexts, RoPE bases, tokens of each stage, shares of midtrain
and SFT data, 4,096 sequences of 4,096 tokens a step, cosine from 6e-4 to 2e-4 in pretrain 1, Muon
with AdamW-RMS matching and five Newton-Schulz steps, AdamW on the rest.
Ours: the learning rates of later stages, warm-up, weight decay, the shares of pretraining data, and
that every stage keeps the tokens of a step. Sources are folders under `data/`, prepared for the
stage's window with `python -m zaya_jax.data.prepare`; the shares are those of tokens.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from experiments.configs import base, zaya1_8b_rl
from zaya_jax.config import ConfigError
from zaya_jax.rl.setup import RLSetup

TOKENS_PER_STEP = 4_096 * 4_096

# name: context, RoPE base, tokens, (peak, final) learning rate, shares of the data's classes
_CLASSES = ("long_cot", "web", "natively_long", "code", "maths", "short_instructions")
_STAGES = {
    "pretrain1": (4_096, 1e4, 8e12, (6e-4, 2e-4), (0.05, 0.70, 0.0, 0.15, 0.10, 0.0)),
    "pretrain2": (4_096, 1e4, 4e12, (2e-4, 1e-4), (0.15, 0.40, 0.0, 0.22, 0.18, 0.05)),
    "midtrain32k": (32_768, 1e6, 1.2e12, (1e-4, 5e-5), (0.861, 0.057, 0.008, 0.03, 0.03, 0.014)),
    "sft131k": (131_072, 5e6, 660e9, (5e-5, 1e-5), (0.75, 0.098, 0.064, 0.05, 0.026, 0.012)),
}


def get_config(name: str = "pretrain1") -> ConfigDict:
    """One stage, supervised or RL.

    Raises:
      ConfigError: for an unknown stage.
    """
    if name in zaya1_8b_rl.NAMES:
        return zaya1_8b_rl.get_config(name)
    if name not in _STAGES:
        known = ", ".join((*_STAGES, *zaya1_8b_rl.NAMES))
        raise ConfigError(f"stage {name!r} is none of: {known}")
    context, rope_theta, tokens, rates, shares = _STAGES[name]
    config = base.get_config("zaya1_8b")
    config.model.rope_theta = rope_theta
    config.model.max_position_embeddings = context
    config.model.remat = "full" if context > 4_096 else config.model.remat
    config.data.tokenizer = "tokenizer.json"  # of the released model
    config.data.packing = "planned"
    config.data.mixture = tuple(
        f"data/{name}/{kind}={share}" for kind, share in zip(_CLASSES, shares, strict=True) if share
    )
    config.data.max_bytes = None
    config.data.sequence_length = context
    config.data.batch_size = TOKENS_PER_STEP // context
    config.optimizer.kind = "muon"
    config.optimizer.muon_dtype = "bfloat16"
    config.optimizer.peak_learning_rate, config.optimizer.final_learning_rate = rates
    config.optimizer.warmup_steps = 2_000 if name == "pretrain1" else 500
    config.train.steps = round(tokens / TOKENS_PER_STEP)
    config.train.validation_interval = 1_000
    config.train.sample_tokens = 0
    config.checkpoint.interval = 1_000
    return config


def get_rl(name: str = "rl_warmup") -> RLSetup:
    """What an RL stage needs besides; see `zaya1_8b_rl`."""
    return zaya1_8b_rl.get_rl(name)
