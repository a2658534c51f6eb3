"""How fast are the kernels? On a GPU against their peers; on a CPU, tiny, for regressions.

    python benchmarks/gpu_kernels.py --json gpu_kernels.json

On a GPU: one run at the sizes of ZAYA1-8B, Pallas against the XLA form and the usual peer (cuDNN
attention through ``jax.nn.dot_product_attention``, ``jax.lax.ragged_dot``, a dense product, a
device copy). On a CPU the XLA forms run at tiny sizes: figures to compare with an earlier run on
the same machine, not statements about a GPU. Data are fresh and random; the outputs of all forms
are compared before anything is timed; figures are medians over rounds in which every case runs
once. Times are taken on the host around a finished call and hold, on a GPU, the launch as well.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kernels_pallas.attention_decode import attention_decode
from kernels_pallas.cca import CCAWeights, cca_mix
from kernels_pallas.cross_entropy import linear_cross_entropy
from kernels_pallas.expert_mlp import expert_mlp
from kernels_pallas.flash_attention import flash_attention
from kernels_pallas.newton_schulz import newton_schulz
from kernels_pallas.norm import scaled_residual_norm

ON_GPU = jax.default_backend() != "cpu"
FORMS = ("pallas", "xla") if ON_GPU else ("xla",)
DTYPE = jnp.bfloat16 if ON_GPU else jnp.float32
Cases = dict[tuple[str, str], Callable[[], Any]]


def array(rng: np.random.Generator, *shape: int, dtype: Any = None) -> jax.Array:
    return jnp.asarray(rng.standard_normal(shape, np.float32), dtype or DTYPE)


def with_gradients(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[], Any]:
    """Outputs and gradients to all floating arguments, compiled."""
    floating = [i for i, a in enumerate(arguments) if jnp.issubdtype(_dtype(a), jnp.floating)]

    @jax.jit
    def run(arguments: tuple[Any, ...]) -> Any:
        def loss(chosen: tuple[Any, ...]) -> jax.Array:
            full = list(arguments)
            for position, value in zip(floating, chosen, strict=True):
                full[position] = value
            leaves = jax.tree.leaves(function(*full))
            return jnp.sum(jnp.stack([jnp.sum(a.astype(jnp.float32)) for a in leaves]))

        return jax.grad(loss)(tuple(arguments[i] for i in floating))

    return functools.partial(run, arguments)


def _dtype(argument: Any) -> Any:
    return jax.tree.leaves(argument)[0].dtype


def add(cases: Cases, name: str, make: Callable[[str], Any], arguments: tuple[Any, ...]) -> None:
    """Forward, and forward with backward, in every form."""
    for form in FORMS:
        function = make(form)
        cases[name, form] = functools.partial(jax.jit(function), *arguments)
        cases[f"{name} gradient", form] = with_gradients(function, arguments)


def attention_cases(rng: np.random.Generator, cases: Cases) -> None:
    for seq in (4096, 16384, 65536) if ON_GPU else (256,):
        q, k, v = (array(rng, 1, seq, heads, 128) for heads in (8, 2, 2))

        def ours(q: Any, k: Any, v: Any, form: str) -> Any:
            return flash_attention(q, k, v, implementation=form)[0]

        if seq <= 16384:  # the plain form holds all scores
            add(
                cases,
                f"attention {seq}",
                lambda form: functools.partial(ours, form=form),
                (q, k, v),
            )
        if ON_GPU:
            peer = functools.partial(
                jax.nn.dot_product_attention, is_causal=True, implementation="cudnn"
            )
            cases[f"attention {seq}", "cudnn"] = functools.partial(jax.jit(peer), q, k, v)
            cases[f"attention {seq} gradient", "cudnn"] = with_gradients(peer, (q, k, v))


def expert_cases(rng: np.random.Generator, cases: Cases) -> None:
    tokens, hidden, width = (16384, 2048, 2048) if ON_GPU else (256, 64, 64)
    x = array(rng, tokens, hidden)
    gate = jnp.asarray(rng.random(tokens, np.float32))
    gate_up = array(rng, 16, 2 * width, hidden) * hidden**-0.5
    down = array(rng, 16, hidden, width) * width**-0.5
    skewed = np.where(np.arange(16) < 4, 4.0, 1.0)
    loads = {
        "balanced": rng.permutation(np.arange(tokens) % 16),
        "4:1": rng.choice(16, tokens, p=skewed / skewed.sum()),
    }
    for name, load in loads.items():
        classes = jnp.asarray(load, jnp.int32)

        def ours(x: Any, gate: Any, gate_up: Any, down: Any, form: str, classes: Any) -> Any:
            options: dict[str, Any] = {"dispatch": "grouped", "implementation": form}
            return expert_mlp(x, classes, gate, gate_up, down, **options)

        make = functools.partial(
            lambda form, classes: functools.partial(ours, form=form, classes=classes),
            classes=classes,
        )
        add(cases, f"experts {name}", make, (x, gate, gate_up, down))
    cases["experts dense product", "xla"] = functools.partial(
        jax.jit(lambda x, a, b: (x @ a.T)[:, :width] @ b.T), x, gate_up[0], down[0]
    )


def stream_cases(rng: np.random.Generator, cases: Cases) -> None:
    """cca, norm and a plain copy of as many bytes."""
    seq, head_dim, hidden = (16384, 128, 2048) if ON_GPU else (128, 16, 64)
    channels, half = 10 * head_dim, head_dim
    weights = CCAWeights(
        array(rng, channels, 2, dtype=jnp.float32),
        array(rng, channels, dtype=jnp.float32),
        array(rng, channels, head_dim, 2, dtype=jnp.float32),
        array(rng, channels, dtype=jnp.float32),
        array(rng, 2, dtype=jnp.float32),
        None,
    )
    angles = array(rng, 1, seq, head_dim // 4, dtype=jnp.float32)
    streams = (array(rng, 1, seq, channels), *(array(rng, 1, seq, half) for _ in range(2)))

    def mix(u: Any, a: Any, b: Any, form: str) -> Any:
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        return cca_mix(u, a, b, weights, cos=cos, sin=sin, implementation=form)

    add(cases, "cca", lambda form: functools.partial(mix, form=form), streams)
    names = ("hidden_bias", "hidden_scale", "residual_bias", "residual_scale", "norm_weight")
    vectors = {name: array(rng, hidden, dtype=jnp.float32) for name in names}
    rows = (array(rng, seq, hidden), array(rng, seq, hidden, dtype=jnp.float32))

    def norm(h: Any, r: Any, form: str) -> Any:
        options: dict[str, Any] = {"norm_dtype": DTYPE, "implementation": form}
        return scaled_residual_norm(h, r, epsilon=1e-5, **vectors, **options)

    add(cases, "norm", lambda form: functools.partial(norm, form=form), rows)
    cases["copy", "xla"] = functools.partial(jax.jit(lambda a: a + 1), rows[1])


def other_cases(rng: np.random.Generator, cases: Cases) -> None:
    """Decode attention, cross entropy and Newton-Schulz."""
    batch, keys = (64, 32768) if ON_GPU else (4, 256)
    cache = tuple(array(rng, batch, keys, 2, 128) for _ in range(2))
    lengths = jnp.full((batch,), keys, jnp.int32)
    query = array(rng, batch, 1, 8, 128)
    tokens, hidden, vocab = (4096, 2048, 262_272) if ON_GPU else (64, 64, 512)
    states, head = array(rng, tokens, hidden), array(rng, vocab, hidden) * hidden**-0.5
    targets = jnp.asarray(rng.integers(0, vocab, tokens), jnp.int32)
    weights = jnp.ones((tokens,), jnp.float32)

    def loss(states: Any, head: Any, form: str) -> Any:
        return linear_cross_entropy(
            states, head, None, targets, weights, implementation=form
        ).loss_sum

    add(cases, "cross entropy", lambda form: functools.partial(loss, form=form), (states, head))
    cases["head product", "xla"] = functools.partial(jax.jit(lambda a, b: a @ b.T), states, head)
    matrices = array(rng, 4, 2048, 4096) if ON_GPU else array(rng, 2, 32, 48)
    for form in FORMS:
        decode = jax.jit(functools.partial(attention_decode, implementation=form))
        cases["attention decode", form] = functools.partial(decode, query, *cache, lengths)
        step = jax.jit(functools.partial(newton_schulz, implementation=form))
        cases["newton schulz", form] = functools.partial(step, matrices)


def check(cases: Cases) -> None:
    """Raise unless all forms of an operation agree; compiles and warms up all cases."""
    for (name, form), case in cases.items():
        result = jax.block_until_ready(case())
        reference = cases.get((name, "xla"))
        if form == "xla" or reference is None:
            continue
        pairs = zip(jax.tree.leaves(result), jax.tree.leaves(reference()), strict=True)
        for pair in pairs:
            a, b = (leaf.astype(jnp.float32) for leaf in pair)
            error = float(jnp.abs(a - b).max() / jnp.maximum(jnp.abs(b).max(), 1e-30))
            if not error < 3e-2:
                raise AssertionError(f"{name}, {form}: off by {error:.1e} of the largest entry")


def measure(cases: Cases, rounds: int) -> list[dict[str, Any]]:
    times: dict[tuple[str, str], list[float]] = {key: [] for key in cases}
    for _ in range(rounds):
        for key, case in cases.items():
            start = time.perf_counter()
            jax.block_until_ready(case())
            times[key].append(time.perf_counter() - start)
    return [
        {"name": name, "form": form, "milliseconds": 1e3 * statistics.median(values)}
        for (name, form), values in times.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21 if ON_GPU else 5)
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    options = parser.parse_args()
    rng = np.random.default_rng(time.time_ns())
    cases: Cases = {}
    for make in (attention_cases, expert_cases, stream_cases, other_cases):
        make(rng, cases)
    check(cases)
    rows = measure(cases, options.rounds)
    print(f"{jax.devices()[0].device_kind}: medians of {options.rounds} rounds, milliseconds")
    for row in rows:
        print(f"{row['name']:28s}{row['form']:>8s}{row['milliseconds']:12.3f}")
    if options.json:
        record = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "rows": rows}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
