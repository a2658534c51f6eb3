"""How fast data arrives: tokenising, planning, and batches from memory and from prepared shards.

    python benchmarks/data_loading.py [--output FILE.json]

Compare the last two lines with the tokens a second that a training step reads: `tokens_per_second`
in a run's `metrics.jsonl`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from zaya_jax.data import DataConfig, load_text, training_batches
from zaya_jax.data.packing_plan import fewest_windows, plan_packing
from zaya_jax.data.prepare import prepare

BATCHES = 40


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """The result and the seconds it took."""
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def reading_speed(config: DataConfig) -> float:
    """Real tokens a second of batches, prefetching included."""
    batches = training_batches(config, load_text(config))
    next(batches)  # makes the plan
    read, seconds = timed(lambda: [next(batches) for _ in range(BATCHES)])
    batches.close()
    return sum(int((batch["segment_ids"] > 0).sum()) for batch in read) / seconds


def measure() -> dict[str, float]:
    """All figures."""
    config = DataConfig(packing="planned", sequence_length=4_096, batch_size=8)
    text, seconds = timed(lambda: load_text(config))
    tokens = sum(len(part.tokens) for s in text.sources for part in (s.train, s.validation))
    figures = {"read and tokenise, tokens/s": tokens / seconds}

    lengths = np.random.default_rng(0).lognormal(8.5, 1.2, 1_000_000)
    lengths = np.clip(lengths, 1, 131_072).astype(np.int64)
    plan, seconds = timed(lambda: plan_packing(lengths, 131_072))
    figures["plan 1M lengths, window 131,072: seconds"] = seconds
    figures["windows above the lower bound"] = len(plan) / fewest_windows(lengths, 131_072) - 1

    figures["batches from memory, tokens/s"] = reading_speed(config)
    with tempfile.TemporaryDirectory() as folder:
        prepare(dataclasses.replace(config, max_bytes=6_000_000), Path(folder), workers=1)
        prepared = dataclasses.replace(config, source=folder)
        figures["batches from prepared shards, tokens/s"] = reading_speed(prepared)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="also write the figures as JSON")
    output = parser.parse_args().output
    figures = measure()
    for name, value in figures.items():
        print(f"{name:<44}{value:>16,.4g}")
    if output:
        output.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
