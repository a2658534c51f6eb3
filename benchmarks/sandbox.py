"""How many programs a second the sandbox runs, and how many calls a server answers.

    python benchmarks/sandbox.py [--output FILE.json]

Programs are trivial: they read a line and print it. A call of a server returns its request.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from zaya_jax.rl.sandbox import Sandbox, Verdict
from zaya_jax.rl.sandbox_server import SandboxServer

PROGRAMS, CALLS = 200, 200
ECHO = "def handle(request):\n    return request\n"


def programs_a_second(sandbox: Sandbox, workers: int) -> float:
    """Sandboxed programs, side by side."""
    start = time.perf_counter()
    outcomes = sandbox.run_many(
        [("print(input())", b"%d\n" % i) for i in range(PROGRAMS)], workers=workers
    )
    seconds = time.perf_counter() - start
    wanted = [b"%d\n" % i for i in range(PROGRAMS)]
    if [o.stdout for o in outcomes] != wanted or any(o.verdict is not Verdict.OK for o in outcomes):
        raise SystemExit("a program did not print its line")
    return PROGRAMS / seconds


def calls_a_second(sandbox: Sandbox) -> float:
    """Calls of one server, one after the other."""
    with SandboxServer(ECHO, sandbox) as server:
        server.call({}, seconds=60.0)
        start = time.perf_counter()
        for i in range(CALLS):
            server.call({"i": i}, seconds=60.0)
        return CALLS / (time.perf_counter() - start)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="also as JSON, to this file")
    output, sandbox = parser.parse_args().output, Sandbox()
    sandbox.run("")  # fills the caches of the system
    figures: dict[str, float] = {}
    for workers in sorted({1, 2, 4 * (os.cpu_count() or 1)}):
        figures[f"programs/s, {workers} at a time"] = programs_a_second(sandbox, workers)
    figures["server calls/s"] = calls_a_second(sandbox)
    for name, value in figures.items():
        print(f"{name:28}{value:8.1f}")
    if output is not None:
        output.write_text(json.dumps({"cores": os.cpu_count(), **figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
