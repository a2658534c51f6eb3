"""Tries every data set of reasoning-gym on many problems, over all its levels.

    python -m zaya_jax.rl.environments.reasoning_gym_check [--samples 1000] [--processes 2]

Of each problem the data set's own answer must be right and two that mean nothing wrong; the answer
of the problem before, where it is another text, is tried too and counted, for some data sets have
problems with many right answers. Many problems of a level are made and scored in a fork, by the
functions that the environments use one to a fork. Prints a line for each data set; exit status 1
when one has a fault.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import queue
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from zaya_jax.rl.environments.reasoning_gym import SERVER_SOURCE, ReasoningGym
from zaya_jax.rl.environments.verifier import library_server
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.sandbox_server import SandboxServer, ServerError

CHUNK = 25  # problems of a fork, all of one level
_WALL_SECONDS = 3_600.0  # of a fork, on however busy a machine; CPU time is what is limited
# A problem has 5 CPU seconds, a data set 60 to read its files. The alarm comes again, for libraries
# catch what they should not.
_SOURCE = (
    SERVER_SOURCE
    + """
import signal, time

class Slow(BaseException):
    pass

def slow(*_):
    raise Slow

def limited(seconds, function, *values):
    try:
        signal.setitimer(signal.ITIMER_PROF, seconds, 1)
        return function(*values)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)

def graded(data, entry, answer):
    try:
        return float(data.score_answer(answer=answer, entry=entry))
    except Exception:
        return 0.0  # the environment calls it wrong

def one(data, place, before, others):
    try:
        entry = data[place]
    except Exception as error:
        return f"not made: {error}", None
    answer = entry["answer"]
    if answer is not None and data.score_answer(answer=str(answer), entry=entry) < 1:
        return "refused", None
    for nonsense in ("I cannot tell %$", ""):
        if str(answer) != nonsense and graded(data, entry, nonsense) >= 1:
            return f"takes {nonsense!r}", None
    if before is not None and str(answer) != before:
        others[0] += 1
        others[1] += graded(data, entry, before) >= 1
    return ("no answer", None) if answer is None else ("good", str(answer))

def handle(request):
    signal.signal(signal.SIGPROF, slow)
    counts, others, before, start = {}, [0, 0], None, time.process_time()
    number = request["number"]
    data = limited(60, dataset, request["name"], request["level"], request["seed"], number)
    for place in range(number):
        try:
            found, before = limited(5, one, data, place, before, others)
        except Slow:
            found, before = "slow", None
        except Exception as error:
            found, before = f"raised {type(error).__name__}: {error}", None
        counts[found] = counts.get(found, 0) + 1
    return {"counts": counts, "others": others, "cpu": time.process_time() - start}
"""
)
# Many right answers, so that the data set gives none; solved by its own scorer alone.
WITHOUT_ORACLE = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
# Problems whose own answer is refused, or that are not made, are broken to the environment; of
# these data sets some are, and of no other.
REFUSED = {
    "gsm_symbolic": "has a negative answer, whose sign its scorer does not read",
    "jugs": "has no solution",
    "string_manipulation": "has an empty answer",
}
NOT_MADE = {"countdown": "finds no expression in 100 attempts", "tsumego": "finds no capture"}


@dataclasses.dataclass
class Tried:
    """What became of a data set's problems.

    Attributes:
      name: of the data set.
      number: of problems asked for.
      counts: of them by what happened.
      cpu_seconds: for making and scoring.
      others: problems that the answer of the one before was tried on.
      others_right: those of them where it was right.
    """

    name: str
    number: int = 0
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    cpu_seconds: float = 0.0
    others: int = 0
    others_right: int = 0

    @property
    def faults(self) -> list[str]:
        """What should not have happened."""
        return [
            f"{self.name}: {kind} ({count} of {self.number})"
            for kind, count in self.counts.items()
            if not self._is_fine(kind, count)
        ]

    def _is_fine(self, kind: str, count: int) -> bool:
        few = count < self.number / 4
        return (
            kind == "good"
            or (kind == "no answer" and self.name in WITHOUT_ORACLE)
            or (kind == "slow" and count < self.number)
            or (kind == "refused" and self.name in REFUSED and few)
            or (kind.startswith("not made") and self.name in NOT_MADE and few)
        )


def try_data_set(
    server: SandboxServer,
    name: str,
    levels: Sequence[int],
    *,
    samples: int,
    cpu_seconds: float,
) -> Tried:
    """Asks for so many problems, or for those of so many seconds and the fork that exceeds them."""
    tried = Tried(name)
    while tried.number < samples and tried.cpu_seconds < cpu_seconds:
        number = min(CHUNK, samples - tried.number)
        level = levels[tried.number // CHUNK % len(levels)]
        request = {"name": name, "level": level, "seed": tried.number, "number": number}
        try:
            found = server.call(request, seconds=_WALL_SECONDS)
        except ServerError as error:
            counts = {f"fork: {error}": number}
            found = {"counts": counts, "others": [0, 0], "cpu": cpu_seconds}
        for kind, count in found["counts"].items():
            tried.counts[kind] = tried.counts.get(kind, 0) + count
        tried.number += number
        tried.cpu_seconds += found["cpu"]
        tried.others += found["others"][0]
        tried.others_right += found["others"][1]
    return tried


def try_all(
    levels: dict[str, tuple[int, ...]], *, samples: int, cpu_seconds: float, processes: int
) -> Iterator[Tried]:
    """All data sets of `levels`, in so many servers; the quick first."""
    servers: queue.SimpleQueue[SandboxServer] = queue.SimpleQueue()

    def of(name: str) -> Tried:
        server = servers.get()
        try:
            return try_data_set(
                server, name, levels[name], samples=samples, cpu_seconds=cpu_seconds
            )
        finally:
            servers.put(server)

    with contextlib.ExitStack() as stack, ThreadPoolExecutor(processes) as pool:
        for _ in range(processes):
            servers.put(stack.enter_context(library_server("reasoning_gym", _SOURCE)))
        for future in as_completed([pool.submit(of, name) for name in sorted(levels)]):
            yield future.result()


def main(words: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--samples", type=int, default=1_000, help="problems of each (1000)")
    parser.add_argument("--cpu-seconds", type=float, default=300.0, help="most of each (300)")
    parser.add_argument("--processes", type=int, default=2, help="data sets at a time (2)")
    parser.add_argument("--names", nargs="*", help="only these data sets")
    parser.add_argument("--output", type=Path, help="also as JSON lines, to this file")
    options = parser.parse_args(words)
    try:
        with contextlib.closing(ReasoningGym()) as gym:
            chosen = {name: gym.levels[gym.known(name)] for name in options.names or gym.names}
    except RLError as error:
        print(error, file=sys.stderr)
        return 2
    start, found = time.monotonic(), list[Tried]()
    for tried in try_all(
        chosen,
        samples=options.samples,
        cpu_seconds=options.cpu_seconds,
        processes=options.processes,
    ):
        found.append(tried)
        print(_line(tried), flush=True)
        if options.output is not None:
            record: dict[str, Any] = dataclasses.asdict(tried)
            with options.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
    faults = [fault for tried in found for fault in tried.faults]
    print(
        f"{len(found)} data sets, {sum(tried.number for tried in found):,} problems, "
        f"{sum(tried.number >= options.samples for tried in found)} data sets with "
        f"{options.samples:,}; {sum(tried.cpu_seconds for tried in found):.0f} CPU seconds in "
        f"{time.monotonic() - start:.0f} s; {len(faults)} faults"
    )
    print("\n".join(faults))
    return 1 if faults else 0


def _line(tried: Tried) -> str:
    counts = ", ".join(f"{kind} {count}" for kind, count in sorted(tried.counts.items()))
    return (
        f"{tried.name}: {tried.number} problems in {tried.cpu_seconds:.1f} CPU s: {counts}; "
        f"answer of the problem before right for {tried.others_right} of {tried.others}"
    )


if __name__ == "__main__":
    sys.exit(main())
