"""Rows that cannot be used: counted, named, and limited."""

from __future__ import annotations

import collections

from zaya_jax.data.config import DataError

_NAMED = 5  # places that messages list


class BadRows:
    """Keeps count of unusable rows of one source and stops when there are too many."""

    def __init__(self, source: str, most: int | None) -> None:
        """Allows at most `most` bad rows; None allows any number."""
        self._source = source
        self._most = most
        self.count = 0
        self.reasons: collections.Counter[str] = collections.Counter()
        self.first: list[str] = []  # "place: reason" of the first few

    def note(self, place: str, reason: str) -> None:
        """Counts one.

        Raises:
          DataError: when that is one too many; names the first ones.
        """
        self.count += 1
        self.reasons[reason] += 1
        if len(self.first) < _NAMED:
            self.first.append(f"{place}: {reason}")
        if self._most is not None and self.count > self._most:
            raise DataError(
                f"source {self._source!r}: more than max_bad_rows={self._most} unusable rows. "
                f"The first: {'; '.join(self.first)}. Mend the data or raise max_bad_rows"
            )

    def summary(self) -> str:
        """One line for people; empty when every row was usable."""
        if not self.count:
            return ""
        named = "; ".join(self.first)
        more = "" if self.count <= _NAMED else f"; and {self.count - _NAMED} more"
        return f"{self._source}: {self.count} unusable rows were left out: {named}{more}"
