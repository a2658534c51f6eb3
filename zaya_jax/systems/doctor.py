"""Looks at this machine: versions, devices, drivers, and combinations known to fail.

    python -m zaya_jax.systems.doctor

The status is 1 when a known-bad combination is found.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence

from zaya_jax.checkpoint.command import run_command
from zaya_jax.systems.command import make_parser, print_table
from zaya_jax.systems.known_problems import PROBLEMS, Problem
from zaya_jax.systems.machine_facts import Facts, gather

_SHOWN_VARIABLES = ("JAX_", "XLA_", "HIP_", "ROCR_", "HSA_", "NCCL_", "RCCL_", "CUDA_VISIBLE")


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("doctor", "Versions, devices, drivers and combinations known to fail.", "")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    arguments = parser.parse_args(argv)
    facts = gather()
    problems = diagnose(facts)
    print(as_json(facts, problems) if arguments.json else "", end="")
    if not arguments.json:
        show(facts, problems)
    return 1 if problems else 0


def diagnose(facts: Facts) -> list[Problem]:
    """The known-bad combinations that a machine is in."""
    return [problem for problem in PROBLEMS if problem.applies(facts)]


def show(facts: Facts, problems: list[Problem]) -> None:
    """Prints the facts and what is wrong with them."""
    rows = [*facts.versions.items(), ("backend", facts.backend)]
    rows += [(f"device {number}", kind) for number, kind in enumerate(facts.devices)]
    named = {
        "architecture": facts.architecture,
        "ROCm": facts.rocm_version,
        "driver": facts.driver,
        "host address": facts.host_address,
        "error": facts.backend_error,
    }
    rows += [(name, value) for name, value in named.items() if value]
    rows += _shown(facts).items()
    print_table("this machine", ("", ""), rows, left=2)
    if not problems:
        print(f"none of {len(PROBLEMS)} combinations known to fail")
    for problem in problems:
        print(f"PROBLEM  {problem.name}\n    mend:   {problem.mend}\n    source: {problem.source}")


def as_json(facts: Facts, problems: list[Problem]) -> str:
    """The same for programs."""
    plain = dataclasses.asdict(facts) | {"environment": _shown(facts)}
    found = [
        {"name": problem.name, "mend": problem.mend, "source": problem.source}
        for problem in problems
    ]
    return json.dumps({"facts": plain, "problems": found}, indent=2) + "\n"


def _shown(facts: Facts) -> dict[str, str]:
    """Variables that steer JAX and its libraries; nothing else of the environment is shown."""
    return {
        name: value
        for name, value in sorted(facts.environment.items())
        if name.startswith(_SHOWN_VARIABLES)
    }


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
