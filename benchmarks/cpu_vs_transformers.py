"""Training and forward speed on the CPU against the PyTorch implementation, in one run.

    python benchmarks/cpu_vs_transformers.py [--repeats 7] [--json FILE]

Both sides hold the same `mini` weights (hidden 512, 8 layers, 4 query and 2 KV heads of 64, 16
experts of 512, vocabulary 8,192) and read the same batch of 4 sequences of 512 tokens, in float32.
A training step is forward, loss, backward and an AdamW update of all parameters. `forward` makes
the logits of every token; `loss` is what validation computes: forward and mean cross entropy. The
reference runs with its fastest experts implementation, found at the start. Repeats interleave the
two sides, so a slow moment of the machine hits both; the table shows medians. Losses are compared
before anything is timed.

Needs torch and transformers: pip install -e '.[parity]'.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from transformers import ZayaConfig, ZayaForCausalLM

from zaya_jax.checkpoint.layouts import tensors_from_variables, transformers_layout
from zaya_jax.data.config import DataConfig
from zaya_jax.model.transformer import Transformer
from zaya_jax.model_size import flops_per_token, training_flops_per_token
from zaya_jax.optimizer.settings import OptimizerConfig, Schedule
from zaya_jax.presets import mini
from zaya_jax.training.loss import loss_sums
from zaya_jax.training.settings import RunConfig, TrainConfig
from zaya_jax.training.state import state_from_variables
from zaya_jax.training.step import train_step

BATCH, SEQ = 4, 512
LEARNING_RATE = 1e-4
WEIGHT_DECAY = 0.1

Work = Callable[[], Any]


def initial_variables() -> dict[str, Any]:
    """Fresh `mini` weights whose balancing biases even out the load, as training would."""
    config = mini()
    model = Transformer(config)
    variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 8), jnp.int32))
    return balanced(config, variables, batch()["tokens"])


def balanced(config: Any, variables: dict[str, Any], tokens: np.ndarray) -> dict[str, Any]:
    """Sets the balancing biases so that no expert has more than twice the mean load.

    One layer after the other: a layer's loads depend on its own biases and those before.
    """

    @jax.jit
    def probabilities_of(biases: np.ndarray) -> jax.Array:
        own = {**variables, "balancing": {"biases": biases}}
        return Transformer(config).apply(own, tokens, method="hidden_states").routing.probabilities

    biases = np.array(variables["balancing"]["biases"])
    for layer in range(config.num_layers):
        # [batch, seq, classes] -> [tokens, classes]
        own = np.asarray(probabilities_of(biases)[layer]).reshape(-1, biases.shape[1])
        biases[layer] = _evened(own, biases[layer])
    return {**variables, "balancing": {"biases": jnp.asarray(biases)}}


def _evened(probabilities: np.ndarray, biases: np.ndarray) -> np.ndarray:
    """One layer's biases, moved until the experts' loads are even enough; the last one is kept."""
    experts = len(biases) - 1
    for step in range(200):
        chosen = np.argmax(probabilities + biases, axis=1)
        load = np.bincount(chosen, minlength=experts + 1) / len(chosen)
        if load.max() <= 2.0 / experts:
            break
        change = 0.02 * 0.98**step * np.sign(load[:-1] - 1.0 / experts)
        biases = np.append(biases[:-1] - change, biases[-1])
    return biases.astype(np.float32)


def batch() -> dict[str, np.ndarray]:
    """Random tokens; every token but the last of a row has a target."""
    tokens = np.random.default_rng(0).integers(0, mini().vocab_size, (BATCH, SEQ), dtype=np.int32)
    weights = np.ones((BATCH, SEQ), np.float32)
    weights[:, -1] = 0.0
    return {
        "tokens": tokens,
        "targets": np.roll(tokens, -1, axis=1),
        "positions": np.broadcast_to(np.arange(SEQ, dtype=np.int32), (BATCH, SEQ)).copy(),
        "segment_ids": np.ones((BATCH, SEQ), np.int32),
        "loss_weights": weights,
    }


def our_work(variables: dict[str, Any]) -> tuple[dict[str, Work], float]:
    """What this project is timed on, and its loss before any update."""
    config = RunConfig(
        model=mini(),
        data=DataConfig(sequence_length=SEQ, batch_size=BATCH),
        optimizer=OptimizerConfig(
            schedule=Schedule.CONSTANT,
            peak_learning_rate=LEARNING_RATE,
            warmup_steps=0,
            weight_decay=WEIGHT_DECAY,
            clip_norm=0.0,
        ),
        train=TrainConfig(steps=1_000),
    )
    model = Transformer(config.model)
    data = {name: jnp.asarray(array) for name, array in batch().items()}

    def mean_loss(own: dict[str, Any]) -> jax.Array:
        sums = loss_sums(model, own["params"], own["balancing"], data)
        return sums.loss / sums.weight

    forward = jax.jit(lambda own: model.apply(own, data["tokens"]).logits)
    loss = jax.jit(mean_loss)
    step = jax.jit(lambda state: train_step(config, state, data), donate_argnums=0)
    first_loss = float(loss(variables))
    own_copy = jax.tree.map(jnp.copy, variables)
    state = [state_from_variables(config, own_copy, jax.random.key_data(jax.random.key(0)))]

    def train() -> None:
        state[0], metrics = step(state[0])
        jax.block_until_ready(metrics.loss)

    work = {
        "forward": lambda: forward(variables).block_until_ready(),
        "loss": lambda: loss(variables).block_until_ready(),
        "training": train,
    }
    return work, first_loss


def reference_model(variables: dict[str, Any]) -> Any:
    """The PyTorch model with the same weights."""
    config = mini()
    rope = {"rope_type": "default", "rope_theta": config.rope_theta, "partial_rotary_factor": 0.5}
    reference = ZayaForCausalLM(
        ZayaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_query_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            moe_intermediate_size=config.expert_intermediate_size,
            num_experts=config.num_experts,
            router_hidden_size=config.router_hidden_size,
            max_position_embeddings=config.max_position_embeddings,
            rope_parameters={"hybrid": rope, "hybrid_sliding": rope},
            eos_token_id=1,
        )
    )
    named = tensors_from_variables(transformers_layout(config), config, variables)
    tensors = {name: torch.from_numpy(np.array(tensor)) for name, tensor in named}
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    reference.load_state_dict(tensors, strict=True)
    return reference


def reference_work(model: Any) -> tuple[dict[str, Work], float]:
    """What the reference is timed on, and its loss before any update."""
    tokens = torch.from_numpy(batch()["tokens"]).long()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=WEIGHT_DECAY
    )

    def forward() -> None:
        with torch.no_grad():
            model(tokens, use_cache=False)

    def loss() -> float:
        with torch.no_grad():
            return float(model(tokens, labels=tokens, use_cache=False).loss)

    def train() -> None:
        optimizer.zero_grad()
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()

    work = {"forward": forward, "loss": loss, "training": train}
    return work, loss()


def fastest_experts(model: Any) -> str:
    """Chooses the reference's experts implementation by one timed training step of each."""
    seconds = {}
    for name in ("eager", "grouped_mm"):
        model.set_experts_implementation(name)
        tokens = torch.from_numpy(batch()["tokens"]).long()
        for _ in range(2):  # the first one warms up
            start = time.perf_counter()
            model(tokens, labels=tokens, use_cache=False).loss.backward()
            seconds[name] = time.perf_counter() - start
        model.zero_grad()
    best = min(seconds, key=lambda name: seconds[name])
    model.set_experts_implementation(best)
    return best


def interleaved_medians(sides: dict[str, Work], repeats: int) -> dict[str, float]:
    """Median seconds of each side; the sides take turns."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for work in sides.values():
        work()
    for _ in range(repeats):
        for name, work in sides.items():
            start = time.perf_counter()
            work()
            samples[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in samples.items()}


def matmul_peak() -> float:
    """FLOP/s of the best of ten 2048^3 float32 products: what this machine can give."""
    x = jnp.ones((2_048, 2_048), jnp.float32)
    product = jax.jit(lambda a: a @ a)
    product(x).block_until_ready()
    times = []
    for _ in range(10):
        start = time.perf_counter()
        product(x).block_until_ready()
        times.append(time.perf_counter() - start)
    return 2 * 2_048**3 / min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()

    variables = initial_variables()
    model = reference_model(variables)
    experts = fastest_experts(model)
    theirs, their_loss = reference_work(model)
    ours, our_loss = our_work(variables)
    if abs(our_loss - their_loss) > 1e-4 * their_loss:
        raise SystemExit(f"losses differ, nothing was timed: {our_loss} and {their_loss}")

    peak = matmul_peak()
    flops = {
        "forward": flops_per_token(mini(), SEQ),
        "loss": flops_per_token(mini(), SEQ),
        "training": training_flops_per_token(mini(), SEQ),
    }
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores")
    print(f"jax {jax.__version__}, torch {torch.__version__} with {experts} experts")
    print(f"loss {our_loss:.6f} and {their_loss:.6f}; best matmul {peak / 1e9:.0f} GFLOP/s")
    print(f"{'':10}{'zaya_jax':>12}{'reference':>12}{'ratio':>8}{'of matmul':>11}   (tokens/s)")
    rows = {}
    for name in ("forward", "loss", "training"):
        seconds = interleaved_medians(
            {"ours": ours[name], "theirs": theirs[name]}, arguments.repeats
        )
        speed = {side: BATCH * SEQ / value for side, value in seconds.items()}
        share = speed["ours"] * flops[name] / peak
        rows[name] = {
            "tokens_per_second": speed["ours"],
            "reference_tokens_per_second": speed["theirs"],
            "ratio": speed["ours"] / speed["theirs"],
            "share_of_matmul_peak": share,
        }
        print(
            f"{name:10}{speed['ours']:>12.0f}{speed['theirs']:>12.0f}"
            f"{rows[name]['ratio']:>8.2f}{share:>11.0%}"
        )
    if arguments.json:
        record = {"matmul_flops": peak, "experts_implementation": experts, "rows": rows}
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
