"""Times the matrix products of a model on one device, as they are and slightly misaligned.

    python -m zaya_jax.systems.matmul --config experiments/configs/zaya1_8b.py:pretrain1 \\
        --tokens 16384 --out runs/products

Every product [tokens, inner] x [inner, outer] is repeated with `--offsets` added to inner and
outer: sizes that are no multiple of a tile show what alignment is worth. A row of each result is
checked in float64.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from zaya_jax.checkpoint.command import Parser, run_command
from zaya_jax.config import ConfigError, ModelConfig
from zaya_jax.systems.command import make_parser, parse_with_config, print_table, write_json
from zaya_jax.systems.plots import plot_lines
from zaya_jax.systems.timing import median_seconds
from zaya_jax.training.metrics import peak_flops

# Of a bfloat16 product with float32 sums, relative to the size of its terms.
_TOLERANCE = {"bfloat16": 2e-2, "float32": 2e-5}


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One product."""

    name: str
    tokens: int
    inner: int
    outer: int
    seconds: float
    tflops: float  # 10^12 FLOP per second
    is_right: bool


def product(
    x: Float[Array, "tokens inner"], weight: Float[Array, "inner outer"]
) -> Float[Array, "tokens outer"]:
    """What is timed: products in the operands' dtype, sums in float32."""
    return jnp.matmul(x, weight, preferred_element_type=jnp.float32).astype(x.dtype)


def model_products(model: ModelConfig, tokens: int) -> list[tuple[str, int, int, int]]:
    """Name, tokens, inner and outer size of the forward products; experts evenly loaded."""
    per_expert = max(tokens // model.num_experts, 1)
    hidden, width = model.hidden_size, model.expert_intermediate_size
    return [
        ("query projection", tokens, hidden, model.query_size),
        ("key projection", tokens, hidden, model.kv_size),
        ("output projection", tokens, model.query_size, hidden),
        ("router", tokens, hidden, model.router_hidden_size),
        ("expert gate and up", per_expert, hidden, 2 * width),
        ("expert down", per_expert, width, hidden),
        ("LM head", min(tokens, 4_096), hidden, model.vocab_size),
    ]


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    arguments, config = parse_with_config(_parser(), argv)
    if arguments.tokens < 1:
        raise ConfigError(f"--tokens={arguments.tokens}: must be at least 1")
    try:
        offsets = [int(word) for word in arguments.offsets.split(",")]
    except ValueError:
        raise ConfigError(f"--offsets={arguments.offsets!r}: give numbers like 0,1,8") from None
    dtype = config.model.activation_dtype
    found = [
        measure(name, tokens, inner + offset, outer + offset, dtype, arguments.repeats)
        for name, tokens, inner, outer in model_products(config.model, arguments.tokens)
        for offset in offsets
    ]
    device = jax.devices()[0].device_kind
    peak = peak_flops(device)
    rows = [
        (
            one.name,
            f"{one.tokens:,} x {one.inner:,} x {one.outer:,}",
            f"{one.seconds * 1e6:,.1f} us",
            f"{one.tflops:,.3f} TFLOP/s",
            "-" if peak is None else f"{one.tflops * 1e12 / peak:.1%}",
            "right" if one.is_right else "WRONG",
        )
        for one in found
    ]
    columns = ("product", "tokens x inner x outer", "time", "rate", "of peak", "result")
    print_table(f"one {device}, {dtype}", columns, rows)
    if arguments.out:
        _write(arguments.out, found, device, offsets)
    return 0 if all(one.is_right for one in found) else 1


def measure(
    name: str, tokens: int, inner: int, outer: int, dtype: str, repeats: int
) -> Measurement:
    """Times one product on the first device and checks its last row."""
    keys = jax.random.split(jax.random.key(0))
    x = jax.random.normal(keys[0], (tokens, inner), jnp.float32).astype(dtype)
    weight = jax.random.normal(keys[1], (inner, outer), jnp.float32).astype(dtype)
    run = jax.jit(product)
    row = np.asarray(run(x, weight)[-1], np.float64)
    exact = np.asarray(x[-1], np.float64) @ np.asarray(weight, np.float64)
    is_right = bool(np.abs(row - exact).max() <= _TOLERANCE[dtype] * 4 * np.sqrt(inner))
    seconds = median_seconds(lambda: run(x, weight), repeats)
    rate = 2 * tokens * inner * outer / seconds / 1e12
    return Measurement(name, tokens, inner, outer, seconds, rate, is_right)


def _write(folder: Path, found: list[Measurement], device: str, offsets: list[int]) -> None:
    plain = [dataclasses.asdict(one) for one in found]
    write_json(folder / "matmul.json", {"device": device, "measurements": plain})
    lines = {
        f"sizes + {offset}": sorted(
            (2.0 * one.tokens * one.inner * one.outer, one.tflops)
            for one in found[number :: len(offsets)]
        )
        for number, offset in enumerate(offsets)
    }
    path = folder / "matmul.svg"
    plot_lines(path, f"products on {device}", lines, x_label="FLOP", y_label="TFLOP/s")


def _parser() -> Parser:
    parser = make_parser(
        "matmul",
        "Times the matrix products of a model on one device, aligned and misaligned.",
        "--config experiments/configs/base.py:mini --tokens 2048 --out runs/products",
    )
    parser.add_argument("--tokens", type=int, default=4_096, help="of a microbatch; default 4096")
    parser.add_argument("--offsets", default="0,1,8", help="added to inner and outer sizes")
    parser.add_argument("--repeats", type=int, default=5, help="timings, whose median is shown")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write JSON and a plot there")
    return parser


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
