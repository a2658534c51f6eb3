"""Generating on the CPU against the PyTorch implementation, in one run.

    python benchmarks/cpu_decode_vs_transformers.py [--repeats 5] [--json FILE]

Both sides hold the same `mini` weights, read the same prompts of 64 random tokens and write 128
tokens greedily, in float32, one sequence at a time and 16 at a time. Ours is the engine without its
prefix cache, taking in all prompts at once; theirs is `generate` with its default dynamic cache and
the experts implementation that generates fastest at that batch size, found at the start. Repeats
interleave the two sides, so a slow moment of the machine hits both; the table shows medians. The
texts are compared before anything is timed.

`decode` are the tokens after the first, over the time of the whole call less that of a call for one
token; `generate` are all tokens over the time of the whole call, prompts included. `weights` are
the bytes of weights that a step reads at least, each expert that some sequence chose once, over the
time of our step: what to compare with the bandwidth of the machine's memory.

Then the cache: bytes that one more token takes, of the arrays as allocated, against the formula
2 * layers * KV heads * head_dim * bytes of a number, and for the 8B geometry against attention with
as many heads as the hidden size has room for.

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
import numpy as np
import torch
from cpu_vs_transformers import initial_variables, reference_model

from zaya_jax.config import ModelConfig
from zaya_jax.inference.cache import empty_cache
from zaya_jax.inference.engine import Engine
from zaya_jax.inference.request import Completion, Request, SamplingParams
from zaya_jax.inference.settings import EngineSettings
from zaya_jax.model_size import parameter_count
from zaya_jax.presets import mini, zaya1_8b

PROMPT, NEW = 64, 128
BATCHES = (1, 16)

Generate = Callable[[int], list[list[int]]]  # so many new tokens of every sequence


def prompts(batch: int) -> np.ndarray:
    """Random tokens, [batch, PROMPT]."""
    return np.random.default_rng(batch).integers(3, mini().vocab_size, (batch, PROMPT))


def ours(variables: dict[str, Any], batch: int) -> tuple[Generate, list[Completion]]:
    """The engine, and a list that holds the answers of its last call."""
    settings = EngineSettings(
        cache_tokens=BATCHES[-1] * (PROMPT + NEW), prefill_rows=BATCHES[-1], prefix_cache=False
    )
    engine = Engine(mini(), variables, settings=settings)
    completions: list[Completion] = []

    def generate(new: int) -> list[list[int]]:
        sampling = SamplingParams(max_tokens=new, temperature=0.0)
        requests = [Request(tuple(row), sampling) for row in prompts(batch).tolist()]
        completions[:] = engine.generate(requests)
        return [completion.tokens for completion in completions]

    return generate, completions


def theirs(model: Any, batch: int) -> tuple[Generate, str]:
    """The reference with its fastest experts implementation, and the name of that."""
    tokens = torch.from_numpy(prompts(batch)).long()
    model.generation_config.eos_token_id = None  # nothing ends before its 128 tokens

    def generate(new: int) -> list[list[int]]:
        with torch.no_grad():
            output = model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=new,
                do_sample=False,
                pad_token_id=0,
            )
        return output[:, PROMPT:].tolist()

    # `batched_mm` copies its expert's weights for every token: 3 GB a layer for 16 prompts.
    names = ("eager", "grouped_mm", "batched_mm") if batch == 1 else ("eager", "grouped_mm")
    seconds = {}
    for name in names:
        model.set_experts_implementation(name)
        generate(2)
        seconds[name] = _seconds(generate, 17)
    best = min(seconds, key=lambda name: seconds[name])
    model.set_experts_implementation(best)
    return generate, best


def _seconds(generate: Generate, new: int) -> float:
    start = time.perf_counter()
    generate(new)
    return time.perf_counter() - start


def measure(sides: dict[str, Generate], repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds of a call for one token and of a whole one, of each side; the sides take turns."""
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for generate in sides.values():
        generate(1)
    for _ in range(repeats):
        for name, generate in sides.items():
            samples[name].append((_seconds(generate, 1), _seconds(generate, NEW)))
    return samples


def speeds(times: list[tuple[float, float]], batch: int) -> dict[str, float]:
    """Tokens per second, by the medians."""
    decode = statistics.median(whole - first for first, whole in times)
    whole = statistics.median(whole for _, whole in times)
    return {"decode": batch * (NEW - 1) / decode, "generate": batch * NEW / whole}


def weight_bytes(completions: list[Completion]) -> float:
    """Bytes of weights that a mean step of decoding reads at least."""
    config = mini()
    routes = np.stack([own.routes[PROMPT:] for own in completions], axis=-1)
    # [steps, layers, batch] -> [steps * layers, batch]
    choices = routes.reshape(-1, len(completions)).tolist()
    chosen = [len(set(own) - {config.num_experts}) for own in choices]
    experts = config.num_layers * sum(chosen) / len(chosen)
    expert = 3 * config.hidden_size * config.expert_intermediate_size
    rest = parameter_count(config) - config.num_layers * config.num_experts * expert
    return 4 * (experts * expert + rest)


def compare(variables: dict[str, Any], model: Any, batch: int, repeats: int) -> dict[str, Any]:
    """One batch size: prints its rows of the table and returns what was measured."""
    our_generate, completions = ours(variables, batch)
    their_generate, experts = theirs(model, batch)
    pairs = list(zip(our_generate(NEW), their_generate(NEW), strict=True))
    equal = sum(own == other for own, other in pairs)
    if 4 * equal < 3 * batch:  # a sum that rounds differently may decide between two tokens
        raise SystemExit(f"batch {batch}: {equal} texts of {batch} are equal, nothing was timed")
    samples = measure({"ours": our_generate, "theirs": their_generate}, repeats)
    own, other = (speeds(samples[side], batch) for side in ("ours", "theirs"))
    for kind in ("decode", "generate"):
        ratio = own[kind] / other[kind]
        name = f"{kind}, batch {batch}"
        print(f"{name:20}{own[kind]:>12.1f}{other[kind]:>12.1f}{ratio:>8.2f}")
    read = weight_bytes(completions)
    print(f"  weights: {read / 1e6:.0f} MB a step, {read * own['decode'] / batch / 1e9:.1f} GB/s;")
    print(f"  reference with {experts} experts; {equal} texts of {batch} equal", flush=True)
    return {
        "tokens_per_second": own,
        "reference_tokens_per_second": other,
        "experts_implementation": experts,
        "equal_texts": equal,
        "weight_bytes_per_step": read,
        "seconds_of_one_token_and_of_all": samples,
    }


def cache_bytes(config: ModelConfig) -> float:
    """Bytes that one more token takes in the cache as it is allocated."""
    settings = EngineSettings(prefix_cache=False)
    pages = jax.eval_shape(lambda: empty_cache(config, settings.cache_shape(config))).full
    arrays = (pages.key, pages.value)
    places = settings.pages * settings.page_size
    return sum(array.size * array.dtype.itemsize for array in arrays) / places


def compare_cache() -> dict[str, Any]:
    """Prints the cache's bytes per token beside the formula's."""
    rows = {}
    for name, config in (("mini", mini()), ("zaya1_8b", zaya1_8b())):
        itemsize = np.dtype(config.activation_dtype).itemsize
        formula = 2 * config.num_layers * config.num_kv_heads * config.head_dim * itemsize
        full = 2 * config.num_layers * config.hidden_size * itemsize
        own = cache_bytes(config)
        print(
            f"cache, {name}: {own:.0f} bytes a token, formula {formula}, "
            f"{full / own:.0f}x below {config.hidden_size // config.head_dim} KV heads"
        )
        rows[name] = {"allocated": own, "formula": formula, "full_attention": full}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()

    variables = initial_variables()
    model = reference_model(variables).eval()
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    print(machine)
    print(f"jax {jax.__version__}, torch {torch.__version__}")
    print(f"{'':20}{'zaya_jax':>12}{'reference':>12}{'ratio':>8}   (tokens/s)", flush=True)
    rows = {
        f"batch {batch}": compare(variables, model, batch, arguments.repeats) for batch in BATCHES
    }
    record = {
        "machine": machine,
        "jax": jax.__version__,
        "torch": torch.__version__,
        "rows": rows,
        "cache_bytes_per_token": compare_cache(),
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
