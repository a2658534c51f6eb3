"""Problems unlike any that the small cascade trains on, at temperature 1.

    python -m experiments.evaluate --config experiments/configs/evaluation/cascade_small.py \\
        --workdir DIR --config.init_from=RUN --config.data=CASCADE/data/held_out --ttc light

Sums of five numbers and seven digits to reverse, which are more than it has seen; sums and digits
to sort where a digit comes twice, which it has not seen. `light` is Markovian RSA with N = 8,
C = 4, T = 2: 24 rollouts a problem, each of 40 reasoning tokens at most, all of which are passed
on. `majority` votes among 24 samples, `cascade_small.py:none` draws 8 single ones.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from experiments.cascade_data import HELD_OUT
from experiments.evaluation_config import evaluation_config_dict
from zaya_jax.evaluation.settings import SamplingConfig, TaskConfig, TaskKind

POPULATION, ROUNDS = 8, 2


def get_config(name: str = "") -> ConfigDict:
    """The four families, with one try of each problem; `none`: with 8."""
    sampling = SamplingConfig(temperature=1.0, top_p=1.0, max_tokens=64)
    samples = POPULATION if name == "none" else 1
    config = evaluation_config_dict(
        {
            family: TaskConfig(TaskKind.EXACT, f"{family}.jsonl", samples, sampling=sampling)
            for family in HELD_OUT
        }
    )
    config.rsa.update(
        rounds=ROUNDS,
        population=POPULATION if name == "light" else POPULATION * (ROUNDS + 1),
        subset=4,
        thinking_budget=40,
        tail=40,
        answer_budget=16,
    )
    # One shape of each program: compiling takes longer than answering.
    config.engine.update(
        slots=64,
        cache_tokens=64 * 320,
        prefill_chunk=128,
        prefill_rows=16,
        least_rows=64,
        least_table=32,
        decode_steps=8,
    )
    return config
