"""Sums that `experiments/configs/aggregation_small.py` does not train on, at temperature 1.

    python -m experiments.evaluate --config experiments/configs/evaluation/aggregation_small.py \\
        --workdir DIR --config.init_from=RUN --ttc light

24 of the file's 50 problems. `majority` votes among 8 samples; `light` is Markovian RSA with N = 8,
C = 4, T = 2: 40 reasoning tokens, of which 32 are passed on. `aggregation_small.py:none` is for
single samples, of which it takes 8 of each problem.
"""

from __future__ import annotations

from pathlib import Path

from ml_collections import ConfigDict

from experiments.evaluation_config import evaluation_config_dict
from zaya_jax.evaluation.settings import SamplingConfig, TaskConfig, TaskKind

POPULATION = 8


def get_config(name: str = "") -> ConfigDict:
    """The task, with one try of each problem; `none`: with 8."""
    sampling = SamplingConfig(temperature=1.0, top_p=1.0, max_tokens=64)
    samples = POPULATION if name == "none" else 1
    task = TaskConfig(
        TaskKind.FINAL_ANSWER, "four_term_sums.jsonl", samples, problems=24, sampling=sampling
    )
    config = evaluation_config_dict({"sums": task})
    config.data = str(Path(__file__).parent / "data")
    config.rsa.update(
        rounds=2, population=POPULATION, subset=4, thinking_budget=40, tail=32, answer_budget=16
    )
    # One shape of each program: compiling takes longer than answering.
    config.engine.update(
        slots=32,
        cache_tokens=32 * 512,
        prefill_chunk=256,
        prefill_rows=8,
        least_rows=32,
        least_table=32,
    )
    return config
