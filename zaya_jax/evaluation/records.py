"""What was answered and how it was graded, on disk as it happens.

The first line of a log says what decides its records; every other line is one record. Lines are
only ever added. A torn last line, left by a kill, is cut off when the log is opened again.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zaya_jax.evaluation.errors import EvaluationError


@dataclasses.dataclass(frozen=True)
class Graded:
    """One final answer to a problem, and its grade.

    Attributes:
      answer: after the thinking.
      reasoning: the thinking, or what is known of it.
      new_tokens: generated for this answer.
      cut: whether a budget ended thinking or answer.
      reward: in [0, 1]; right is 1.
      reason: of the grader, or why the model refused the question.
      vote: what the answer comes to in a vote; None abstains.
      refused: the model could not take the question.
      broken: the grader failed, so that the reward says nothing.
    """

    answer: str
    reasoning: str
    new_tokens: int
    cut: bool
    reward: float
    reason: str
    vote: str | None
    refused: bool = False
    broken: bool = False


@dataclasses.dataclass(frozen=True)
class Record:
    """One try at a problem.

    Attributes:
      item: id of the problem.
      number: of the try.
      answers: of a plain try one; of a vote or of Markovian RSA one for each candidate.
      new_tokens: generated in all.
      prefill_tokens: read in prompts.
      peak_context: most tokens in one context.
      seconds: of wall time.
    """

    item: str
    number: int
    answers: tuple[Graded, ...]
    new_tokens: int
    prefill_tokens: int
    peak_context: int
    seconds: float


class RecordLog:
    """Records by problem and try.

    Raises:
      EvaluationError: on construction, when the file was begun with other settings, or is damaged.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        """Opens or begins the log.

        Args:
          path: of the file.
          header: what decides the records; plain JSON values.
        """
        self.records: dict[tuple[str, int], Record] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        try:
            lines = self._whole_lines(path)
            if not lines:
                self._write(dict(header))
                return
            _compare(path, lines[0], dict(header))
            for number, line in enumerate(lines[1:], start=2):
                self._note(_record(path, number, line))
        except BaseException:
            self._file.close()
            raise

    def add(self, record: Record) -> None:
        """Notes a record; it is with the system before this returns."""
        self._note(record)
        self._write(dataclasses.asdict(record))

    def close(self) -> None:
        """Closes the file."""
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def _note(self, record: Record) -> None:
        self.records[record.item, record.number] = record

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line).encode("utf-8") + b"\n")
        self._file.flush()

    def _whole_lines(self, path: Path) -> list[Any]:
        self._file.seek(0)
        content = self._file.read()
        whole = content.rpartition(b"\n")[0]
        self._file.truncate(len(whole) + 1 if whole else 0)
        lines = []
        for number, line in enumerate(whole.split(b"\n") if whole else [], start=1):
            try:
                lines.append(json.loads(line))
            except ValueError as error:
                raise _damaged(path, number, error) from error
        return lines


def _record(path: Path, number: int, line: Any) -> Record:
    try:
        answers = tuple(Graded(**answer) for answer in line["answers"])
        return Record(**{**line, "answers": answers})
    except (TypeError, KeyError) as error:
        raise _damaged(path, number, error) from error


def _damaged(path: Path, number: int, error: Exception) -> EvaluationError:
    return EvaluationError(
        f"{path}, line {number} is no record ({error}); remove the line, or the file to begin anew"
    )


def _compare(path: Path, found: Any, wanted: dict[str, Any]) -> None:
    if not isinstance(found, dict) or "task" not in found:
        raise EvaluationError(f"{path} is no log of an evaluation; choose another --workdir")
    for name in sorted({*wanted, *found}):
        before, now = found.get(name), wanted.get(name)
        if before != now:
            raise EvaluationError(
                f"{path} was begun with {name}={before!r}, now {now!r}; choose another --workdir "
                "or the same settings"
            )
