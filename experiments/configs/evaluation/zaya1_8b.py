"""The published protocol of ZAYA1-8B (arXiv 2605.05365): samples and sampling of each benchmark.

    python -m experiments.evaluate --config experiments/configs/evaluation/zaya1_8b.py:maths \\
        --workdir DIR --config.init_from=CHECKPOINT --config.data=FOLDER

FOLDER holds the benchmarks as JSON lines, which are not shipped here; docs/evaluation.md says how a
line looks. Variants: maths, code, knowledge, instructions; without one, all of them. For the
published scores with Markovian RSA add `--ttc default` (16K/4K) or `--ttc headline` (40K/4K), with
`samples=1`: its score is the mean over the final candidates.

Published scores: AIME'26 89.1, HMMT'26 71.6, LiveCodeBench-v6 64.8, GPQA-Diamond 71.0, MMLU-Pro
74.2, IFEval 85.6, IFBench 52.6. Not run by us: there is neither the data nor the hardware here.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from experiments.evaluation_config import evaluation_config_dict
from zaya_jax.config import ConfigError
from zaya_jax.evaluation.settings import SamplingConfig, TaskConfig, TaskKind

MATHS = SamplingConfig(temperature=1.0, top_p=0.95, max_tokens=81_920)
CODE = SamplingConfig(temperature=0.6, top_p=0.95, top_k=20, max_tokens=81_920)

TASKS = {
    "maths": {
        name: TaskConfig(TaskKind.FINAL_ANSWER, f"{name}.jsonl", 64, sampling=MATHS)
        for name in ("aime26", "hmmt26", "imo_answerbench", "apex")
    },
    "code": {
        "livecodebench_v6": TaskConfig(TaskKind.CODE, "livecodebench_v6.jsonl", 16, sampling=CODE)
    },
    "knowledge": {
        "gpqa_diamond": TaskConfig(
            TaskKind.MULTIPLE_CHOICE, "gpqa_diamond.jsonl", 16, sampling=MATHS
        ),
        "mmlu_pro": TaskConfig(TaskKind.MULTIPLE_CHOICE, "mmlu_pro.jsonl", 1, sampling=MATHS),
    },
    "instructions": {
        "instructions": TaskConfig(TaskKind.INSTRUCTIONS, "instructions.jsonl", 1, sampling=MATHS)
    },
}


def get_config(name: str = "") -> ConfigDict:
    """The tasks of one variant, or all."""
    if name and name not in TASKS:
        raise ConfigError(f"variant {name!r} must be one of: {', '.join(TASKS)}")
    chosen = [TASKS[name]] if name else list(TASKS.values())
    config = evaluation_config_dict({task: own for group in chosen for task, own in group.items()})
    config.engine.cache_tokens = 4_194_304
    config.engine.slots = 64
    return config
