"""Supervised fine-tuning on conversations: only what the assistant says is learnt.

    python -m experiments.sft --workdir DIR --config.init_from=MIDTRAINED

The same loop as pretraining; what makes it another stage is its config. The default config is the
small one; the published one is experiments/configs/zaya1_8b.py:sft131k.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.command_line import run_reporting_errors
from experiments.pretrain import main as run_stage

CONFIG = str(Path(__file__).parent / "configs" / "small.py") + ":sft"


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    return run_stage(argv, program="experiments.sft", summary=__doc__ or "", default_config=CONFIG)


if __name__ == "__main__":
    run_reporting_errors(lambda: main(sys.argv[1:]))
