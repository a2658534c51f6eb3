"""Generating on the CPU against the PyTorch implementation, in one run.

    python benchmarks/cpu_decode_vs_transformers.py [--repeats 5] [--json FILE]

Both sides hold the same `mini` weights, read the same prompts of 64 random tokens and write 128
tokens greedily, in float32, one sequence at a time and 16 at a time. Ours is the engine with its
default settings, without its prefix cache; theirs is `generate` with its default dynamic cache and
the experts implementation that generates fastest at that batch size, found at the start. Repeats
interleave the two sides, so a slow moment of the machine hits both; the table shows medians. The
texts are compared before anything is timed.

`decode` are the tokens after the first, over the time of the whole call less that of a call for one
token; `generate` are all tokens over the time of the whole call, prompts included.

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

from zaya_jax.inference.engine import Engine
from zaya_jax.inference.request import Request, SamplingParams
from zaya_jax.inference.settings import EngineSettings
from zaya_jax.presets import mini

PROMPT, NEW = 64, 128
BATCHES = (1, 16)

Generate = Callable[[int], list[list[int]]]  # so many new tokens of every sequence


def prompts(batch: int) -> np.ndarray:
    """Random tokens, [batch, PROMPT]."""
    return np.random.default_rng(batch).integers(3, mini().vocab_size, (batch, PROMPT))


def ours(variables: dict[str, Any], batch: int) -> Generate:
    """The engine."""
    settings = EngineSettings(cache_tokens=BATCHES[-1] * (PROMPT + NEW), prefix_cache=False)
    engine = Engine(mini(), variables, settings=settings)

    def generate(new: int) -> list[list[int]]:
        sampling = SamplingParams(max_tokens=new, temperature=0.0)
        requests = [Request(tuple(row), sampling) for row in prompts(batch).tolist()]
        return [completion.tokens for completion in engine.generate(requests)]

    return generate


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

    seconds = {}
    for name in ("eager", "grouped_mm", "batched_mm"):
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


def measure(sides: dict[str, Generate], batch: int, repeats: int) -> dict[str, dict[str, float]]:
    """Tokens per second of each side; the sides take turns."""
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for generate in sides.values():
        generate(1)
    for _ in range(repeats):
        for name, generate in sides.items():
            samples[name].append((_seconds(generate, 1), _seconds(generate, NEW)))
    result = {}
    for name, times in samples.items():
        decode = statistics.median(whole - first for first, whole in times)
        whole = statistics.median(whole for _, whole in times)
        result[name] = {"decode": batch * (NEW - 1) / decode, "generate": batch * NEW / whole}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()

    variables = initial_variables()
    model = reference_model(variables).eval()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores")
    print(f"jax {jax.__version__}, torch {torch.__version__}")
    print(f"{'':20}{'zaya_jax':>12}{'reference':>12}{'ratio':>8}   (tokens/s)")
    rows = {}
    for batch in BATCHES:
        our_generate = ours(variables, batch)
        their_generate, experts = theirs(model, batch)
        if our_generate(NEW) != their_generate(NEW):
            raise SystemExit(f"batch {batch}: the texts differ, nothing was timed")
        sides = {"ours": our_generate, "theirs": their_generate}
        speed = measure(sides, batch, arguments.repeats)
        for kind in ("decode", "generate"):
            own, other = speed["ours"][kind], speed["theirs"][kind]
            name = f"{kind}, batch {batch}"
            rows[name] = {"ours": own, "theirs": other, "ratio": own / other, "experts": experts}
            print(f"{name:20}{own:>12.1f}{other:>12.1f}{own / other:>8.2f}   {experts} experts")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
