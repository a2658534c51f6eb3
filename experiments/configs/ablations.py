"""The comparisons of variants that `python -m experiments.ablate` makes, small enough for a CPU.

    python -m experiments.ablate --config experiments/configs/ablations.py:NAME --workdir DIR

| name | what is compared | held equal |
| --- | --- | --- |
| router | linear, MLP, MLP with depth mixing; data switched on the way | - |
| balancing | rules of the balancing biases, and none | - |
| skip | skip class as released, in reach, none | - |
| optimizer | AdamW, Muon; both tuned over one grid of learning rates | - |
| attention | CCA 2x/8x, CCA 4x, GQA, MLA, multi-head | parameters |
| attention_flops | the same but multi-head | FLOPs |
| cca | convolutions 2, 1, 0; no means; no value delay; none of it | parameters |
| residual | scaled, plain | - |
| experts | top-1, top-2 | FLOPs |

`micro` has the proportions of `zaya_jax.presets.mini` at a quarter of its width and half of its
depth, and reads bytes. `optimizer_mini`, `attention_mini` and `residual_mini` ask the same at the
size of `mini` itself, in fewer steps. `--config.model.…` and `--config.train.steps` change the
size of every arm.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from experiments.ablation.grid import Arm, Grid, Match
from experiments.configs import base
from zaya_jax.config import ConfigError

PROBLEMS = "reasoning_gym:chain_sum?size=4000&seed=1&min_terms=2&max_terms=4"
TEXT = "python_stdlib"
SWITCH = 300  # step of the grid `router` after which problems replace text


def get_config(name: str = "router") -> ConfigDict:
    """The run that the arms of a grid change.

    Raises:
      ConfigError: for an unknown grid.
    """
    get_grid(name)
    if name.endswith("_mini"):
        return _mini_run(steps=48 if name == "optimizer_mini" else 60)
    return _router_run() if name in ("router", "balancing", "skip") else _micro_run()


def get_grid(name: str = "router") -> Grid:
    """The arms of a grid.

    Raises:
      ConfigError: for an unknown grid.
    """
    if name not in _GRIDS:
        raise ConfigError(f"grid {name!r} is none of: {', '.join(_GRIDS)}")
    return _GRIDS[name]


def _micro_run() -> ConfigDict:
    """3.3M parameters, 0.3M active, 200 steps of 1,024 bytes."""
    config = base.get_config("mini")
    model = config.model
    model.vocab_size = 272
    model.hidden_size, model.num_layers = 128, 4
    model.num_query_heads, model.num_kv_heads, model.head_dim = 4, 1, 16
    model.num_experts, model.expert_intermediate_size = 16, 128
    model.router_hidden_size = 32
    model.initializer_stddev = 0.07  # near 1 / sqrt(hidden_size)
    config.data.tokenizer = "bytes"
    config.data.packing = "planned"
    config.data.max_bytes = 2_000_000
    config.data.validation_fraction = 0.02
    config.data.sequence_length, config.data.batch_size = 256, 4
    config.data.validation_batches = 8
    config.optimizer.kind = "muon"
    config.optimizer.peak_learning_rate = 6e-3
    config.optimizer.final_learning_rate = 6e-4
    config.optimizer.warmup_steps = 20
    config.train.steps = 200
    config.train.validation_interval = 20
    config.train.sample_tokens = 0
    config.checkpoint.interval = 100
    config.checkpoint.keep_last = 1
    config.log.tensorboard = False
    config.log.plain_every = 100
    return config


def _mini_run(steps: int) -> ConfigDict:
    """`mini` reading bytes, 105M parameters, 1,024 bytes a step.

    AdamW, since Muon's Newton-Schulz iterations take several times as long as the rest of a step.
    """
    config = _micro_run()
    config.model = base.get_config("mini").model
    config.model.vocab_size = 272
    config.optimizer.kind = "adamw"
    config.optimizer.peak_learning_rate = 1e-3
    config.optimizer.final_learning_rate = 1e-4
    config.optimizer.warmup_steps = 8
    config.train.steps = steps
    config.train.validation_interval = steps // 12
    config.checkpoint.interval = steps // 2
    config.log.plain_every = steps // 4
    return config


def _router_run() -> ConfigDict:
    """Two layers of 16 experts: 300 steps of text, then 150 of sums with worked solutions.

    Learning rates are the report's; what decides is their ratio to that of the balancing biases.
    """
    config = _micro_run()
    config.model.hidden_size, config.model.num_layers = 64, 2
    config.model.expert_intermediate_size = 64
    config.model.initializer_stddev = 0.1
    config.data.mixture = (f"{TEXT}=1/{SWITCH}:0", f"{PROBLEMS}=0/{SWITCH}:1")
    config.data.validation_batches = 4
    config.optimizer.kind = "adamw"
    config.optimizer.schedule = "constant"
    config.optimizer.peak_learning_rate = 6e-4
    config.optimizer.final_learning_rate = 6e-4
    config.train.steps = 450
    config.train.validation_interval = 150
    config.checkpoint.interval = 150
    return config


_LATENT = {
    "model.attention": "mla",
    "model.num_query_heads": 8,
    "model.num_kv_heads": 8,
    "model.kv_latent_size": 24,  # with 8 rotated channels as many numbers as CCA's and GQA's 32
    "model.query_latent_size": 64,
}
_LATENT_MINI = {
    "model.attention": "mla",
    "model.num_query_heads": 8,
    "model.num_kv_heads": 8,
    "model.kv_latent_size": 224,  # with 32 rotated channels as many numbers as two heads' 256
    "model.query_latent_size": 256,
}
_ATTENTION = (
    Arm("cca_2x_8x", {}),
    Arm("cca_4x", {"model.num_query_heads": 2, "model.num_kv_heads": 2}),
    Arm("gqa", {"model.attention": "gqa", "model.num_query_heads": 8}),
    Arm("mla", _LATENT),
    Arm("mha", {"model.attention": "gqa", "model.num_query_heads": 8, "model.num_kv_heads": 8}),
)

_OPTIMIZERS = (
    Arm("adamw", {"optimizer.kind": "adamw"}),
    Arm("muon", {"optimizer.kind": "muon"}),
)
_RESIDUALS = (Arm("scaled", {}), Arm("plain", {"model.residual": "plain"}))

_GRIDS = {
    "router": Grid(
        question="How soon does the load become even, and again after the data change?",
        baseline="linear",
        arms=(
            Arm("linear", {"model.router": "linear"}),
            Arm("mlp", {"model.router": "mlp"}),
            Arm("mlp_eda", {}),
        ),
        switch_step=SWITCH,
    ),
    "balancing": Grid(
        question="Which rule for the balancing biases evens the load?",
        baseline="adamw",
        arms=(
            Arm("adamw", {}),
            Arm("sign", {"optimizer.balancing_rule": "sign"}),
            Arm("pid", {"optimizer.balancing_rule": "pid"}),
            Arm("none", {"optimizer.balancing_learning_rate": 0.0}),
        ),
        switch_step=SWITCH,
    ),
    "skip": Grid(
        question="What does a class without an expert change?",
        baseline="released",
        arms=(
            Arm("released", {}),
            Arm("in_reach", {"model.skip_class_bias": 0.0}),
            Arm("none", {"model.skip_class": "none"}),
        ),
        switch_step=SWITCH,
    ),
    "optimizer": Grid(
        question="In how many steps does Muon reach the loss that AdamW ends with?",
        baseline="adamw",
        arms=_OPTIMIZERS,
        learning_rates=(3e-3, 6e-3, 1.2e-2),
    ),
    "optimizer_mini": Grid(
        question="In how many steps does Muon reach AdamW's final loss, at mini's size?",
        baseline="adamw",
        arms=_OPTIMIZERS,
        learning_rates=(5e-4, 1e-3, 2e-3),
    ),
    "attention": Grid(
        question="CCA against grouped, latent and multi-head attention at equal parameters.",
        baseline="cca_2x_8x",
        arms=_ATTENTION,
        match=Match.PARAMETERS,
    ),
    "attention_mini": Grid(
        question="CCA against grouped and latent attention at equal parameters, at mini's size.",
        baseline="cca",
        arms=(
            Arm("cca", {}),
            Arm("gqa", {"model.attention": "gqa", "model.num_query_heads": 8}),
            Arm("mla", _LATENT_MINI),
        ),
        match=Match.PARAMETERS,
    ),
    "attention_flops": Grid(
        question="CCA against grouped and latent attention at equal FLOPs.",
        baseline="cca_2x_8x",
        arms=_ATTENTION[:-1],  # multi-head costs more than all experts could give up
        match=Match.FLOPS,
    ),
    "cca": Grid(
        question="What do the parts of CCA's mixing step bring?",
        baseline="whole",
        arms=(
            Arm("whole", {}),
            Arm("one_convolution", {"model.convolutions": "depthwise"}),
            Arm("no_convolution", {"model.convolutions": "none"}),
            Arm("no_mean", {"model.query_key_mean": "none"}),
            Arm("no_delay", {"model.value_path": "current"}),
            Arm(
                "bare",
                {
                    "model.convolutions": "none",
                    "model.query_key_mean": "none",
                    "model.value_path": "current",
                },
            ),
        ),
        match=Match.PARAMETERS,
    ),
    "residual": Grid(
        question="What does learned scaling of the residual additions change?",
        baseline="scaled",
        arms=_RESIDUALS,
    ),
    "residual_mini": Grid(
        question="What does learned scaling of the residual additions change, at mini's size?",
        baseline="scaled",
        arms=_RESIDUALS,
    ),
    "experts": Grid(
        question="One expert per token, or two of half the width?",
        baseline="top_1",
        arms=(Arm("top_1", {}), Arm("top_2", {"model.experts_per_token": 2})),
        match=Match.FLOPS,
    ),
}
