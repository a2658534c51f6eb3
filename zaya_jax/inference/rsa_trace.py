"""The log of a run of Markovian RSA: every candidate as it finishes, and a run taken up again.

The first line holds settings and problem, every other line one candidate. A torn last line, left by
a kill, is dropped when the log is opened again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zaya_jax.config import ConfigError
from zaya_jax.inference.rollouts import Rollout
from zaya_jax.inference.rsa_settings import RSASettings

# May differ when a run is taken up again: they change when things happen, not what.
_CIRCUMSTANCES = {"timeout", "concurrency", "attempts"}


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A member of one round's population.

    Attributes:
      round: 0 for the first.
      index: within the round.
      drawn: indices of the candidates of the round before whose tails it saw.
      rollout: None where all attempts failed.
      error: why the last attempt failed, "" otherwise.
      seconds: it took, failed attempts included.
    """

    round: int
    index: int
    drawn: tuple[int, ...]
    rollout: Rollout | None
    error: str
    seconds: float


class TraceLog:
    """Candidates by round and index, in memory and, with a path, on disk.

    Raises:
      ConfigError: when the file belongs to other settings or another problem, or is no trace.
    """

    def __init__(
        self,
        path: Path | None,
        problem: str,
        settings: RSASettings,
        watch: Callable[[Candidate], object] = lambda candidate: None,
    ) -> None:
        """Opens or begins a log; `watch` is told of every candidate that is added."""
        self._watch = watch
        self.candidates: dict[tuple[int, int], Candidate] = {}
        self._file = None
        if path is None:
            return
        header = {"problem": problem, "settings": dataclasses.asdict(settings)}
        lines = _whole_lines(path)
        if lines:
            _check_header(path, lines[0], header)
        for line in lines[1:]:
            candidate = _candidate(line)
            self.candidates[candidate.round, candidate.index] = candidate
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines or [header]))
        self._file = path.open("a", encoding="utf-8")

    def add(self, candidate: Candidate) -> None:
        """Notes a candidate, on disk before anything builds on it."""
        self.candidates[candidate.round, candidate.index] = candidate
        if self._file is not None:
            self._file.write(json.dumps(dataclasses.asdict(candidate)) + "\n")
            self._file.flush()
        self._watch(candidate)

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()


@dataclasses.dataclass(frozen=True)
class Trace:
    """A run as its log tells it, finished or not.

    Attributes:
      problem: text of the user's turn.
      settings: of the run.
      rounds: candidates of each round by index; the last round may lack some.
    """

    problem: str
    settings: RSASettings
    rounds: tuple[tuple[Candidate, ...], ...]


def read_trace(path: Path) -> Trace:
    """Reads a log without touching it.

    Raises:
      ConfigError: when it is missing or no trace.
    """
    lines = _whole_lines(path)
    if not lines:
        raise ConfigError(f"{path} does not exist or holds no trace of Markovian RSA")
    try:
        problem, settings = lines[0]["problem"], RSASettings(**lines[0]["settings"])
        candidates = [_candidate(line) for line in lines[1:]]
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no trace of Markovian RSA: {error}") from error
    by_place = {(own.round, own.index): own for own in candidates}  # the later of two stands
    last = max((own.round for own in candidates), default=-1)
    rounds = tuple(
        tuple(by_place[place] for place in sorted(by_place) if place[0] == number)
        for number in range(last + 1)
    )
    return Trace(problem, settings, rounds)


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a trace; what follows the last newline is torn."""
    if not path.is_file():
        return []
    texts = path.read_text(encoding="utf-8").split("\n")[:-1]
    try:
        lines = [json.loads(text) for text in texts]
    except ValueError as error:
        raise ConfigError(f"{path} is no trace of Markovian RSA: {error}") from error
    if not all(isinstance(line, dict) for line in lines):
        raise ConfigError(f"{path} is no trace of Markovian RSA: its lines are no objects")
    return lines


def _check_header(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    if set(found) != set(wanted):
        raise ConfigError(f"{path} is no trace of Markovian RSA: its first line is something else")
    if found["problem"] != wanted["problem"]:
        raise ConfigError(f"{path} is the trace of another problem; choose another file")
    for name, value in wanted["settings"].items():
        if name not in _CIRCUMSTANCES and found["settings"].get(name) != value:
            raise ConfigError(
                f"{path} was begun with {name}={found['settings'].get(name)!r}, now {value!r}; "
                "choose another file or the same settings"
            )


def _candidate(line: dict[str, Any]) -> Candidate:
    rollout = line["rollout"]
    if rollout is not None:
        rollout = Rollout(**{**rollout, "reasoning": tuple(rollout["reasoning"])})
    return Candidate(**{**line, "drawn": tuple(line["drawn"]), "rollout": rollout})
