"""From a step's device arrays and the clock to one record of ``metrics.jsonl``.

Model FLOPs and MFU, the convention: training costs three forward passes' FLOPs (one forward, two
for the two products of the backward pass). A forward pass counts the matrix products of the
parameters a token really uses (one expert, not all of them) and causal attention; see
`zaya_jax.model_size.flops_per_token`. Work repeated by rematerialisation and work on padding are
not counted. MFU is that rate over the device's dense bfloat16 peak; it is None where the peak is
unknown, as on a CPU.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from zaya_jax.training.clock import Interval
from zaya_jax.training.step import StepMetrics

# Dense bfloat16 peak in FLOP/s, from the makers' data sheets. Matched as part of `device_kind`,
# first match wins, so longer names stand first.
PEAK_FLOPS: dict[str, float] = {
    "MI355X": 2516.6e12,
    "MI350X": 2306.9e12,
    "MI325X": 1307.4e12,
    "MI300X": 1307.4e12,
    "MI250X": 191.5e12,  # one of the two dies, which is what JAX calls a device
    "B200": 2250e12,
    "H200": 989.4e12,
    "H100": 989.4e12,
    "A100": 312e12,
}


def peak_flops(device_kind: str) -> float | None:
    """The dense bfloat16 peak of a device, or None when it is not in the table."""
    matches = (peak for name, peak in PEAK_FLOPS.items() if name in device_kind)
    return next(matches, None)


def train_record(
    step: int,
    metrics: StepMetrics,
    interval: Interval,
    *,
    flops_per_token: float,
    goodput: float,
) -> dict[str, Any]:
    """The record of one step; waits until the device has computed it.

    Args:
      step: the number of this update, the first is 1.
      metrics: of this update.
      interval: where the time since the update before went.
      flops_per_token: of training, see above.
      goodput: share of the run's time so far that went into steps.
    """
    host = jax.device_get(metrics)
    busy = interval.step + interval.data_wait
    tokens = float(host.tokens)
    tokens_per_second = tokens / busy if busy > 0 else 0.0
    peak = peak_flops(jax.devices()[0].device_kind)
    rate = tokens_per_second * flops_per_token
    return {
        "kind": "train",
        "step": step,
        "time": time.time(),
        "loss": float(host.loss),
        "accuracy": float(host.accuracy),
        "tokens": int(tokens),
        "grad_norm": float(host.grad_norm),
        "param_norm": float(host.param_norm),
        "learning_rate": float(host.learning_rate),
        "tokens_per_second": tokens_per_second,
        "model_flops_per_second": rate,
        "mfu": None if peak is None else rate / (peak * jax.device_count()),
        "step_seconds": interval.step,
        "data_wait_seconds": interval.data_wait,
        "checkpoint_seconds": interval.checkpoint,
        "validation_seconds": interval.validation,
        "compile_seconds": interval.compile,
        "goodput": goodput,
        **load_metrics(host.class_counts),
        "residual_rms": host.residual_rms.tolist(),
    }


def load_metrics(class_counts: Float[np.ndarray, "layers classes"]) -> dict[str, list[float]]:
    """How evenly each layer spreads its tokens. The last class is skip.

    `load_entropy` is H(p) / ln E with p the load of the real experts, 1 for a perfectly even load
    (and for a single expert); `min_expert_load` and `max_expert_load` are of the same p, whose fair
    share is 1/E. `skip_share` is over all real tokens. A layer where every token skipped has
    entropy 0.
    """
    counts = np.asarray(class_counts, np.float64)
    experts, total = counts[:, :-1], counts.sum(axis=-1)
    load = experts / np.maximum(experts.sum(axis=-1), 1.0)[:, None]
    logs = np.log(load, where=load > 0, out=np.zeros_like(load))
    entropy = -(load * logs).sum(axis=-1)
    even = np.log(load.shape[-1])
    normalised = entropy / even if even > 0 else np.ones_like(entropy)
    return {
        "load_entropy": normalised.tolist(),
        "skip_share": (counts[:, -1] / np.maximum(total, 1.0)).tolist(),
        "min_expert_load": load.min(axis=-1).tolist(),
        "max_expert_load": load.max(axis=-1).tolist(),
    }
