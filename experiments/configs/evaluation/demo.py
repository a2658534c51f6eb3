"""Five small tasks, one of each kind, that need no download.

    python -m experiments.evaluate --config experiments/configs/evaluation/demo.py \\
        --workdir DIR --config.init_from=CHECKPOINT

Problems are in `experiments/configs/evaluation/data`, twelve or fewer a task: they show that all
parts work and tell nothing about a good model. `demo.py:tiny` asks for a few tokens only, for a
model that was just trained on a CPU.
"""

from __future__ import annotations

from pathlib import Path

from ml_collections import ConfigDict

from experiments.evaluation_config import evaluation_config_dict
from zaya_jax.evaluation.settings import SamplingConfig, TaskConfig, TaskKind

FILES = {
    "maths": TaskKind.FINAL_ANSWER,
    "choices": TaskKind.MULTIPLE_CHOICE,
    "instructions": TaskKind.INSTRUCTIONS,
    "code": TaskKind.CODE,
}


def get_config(name: str = "") -> ConfigDict:
    """All tasks with 4 samples; `tiny`: 2 of at most 48 tokens, and Markovian RSA to match."""
    tiny = name == "tiny"
    samples, sampling = 2 if tiny else 4, SamplingConfig(max_tokens=48 if tiny else 4_096)
    tasks = {
        task: TaskConfig(kind, f"{task}.jsonl", samples, sampling=sampling)
        for task, kind in FILES.items()
    }
    count = 4 if tiny else 12
    gym = TaskConfig(TaskKind.REASONING_GYM, "chain_sum", samples, count, sampling=sampling)
    config = evaluation_config_dict({**tasks, "sums": gym})
    config.data = str(Path(__file__).parent / "data")
    if tiny:
        config.rsa.update(
            rounds=1, population=3, subset=2, thinking_budget=16, tail=8, answer_budget=12
        )
    return config
