"""JSON out of files that strangers wrote: nothing in them is taken silently or believed unseen."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from zaya_jax.checkpoint.error import CheckpointError, reason_of

_MOST_BYTES = 100_000_000  # a tokenizer of 262,272 tokens takes a third of it
_MAY_BE_HALF_A_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_object(data: bytes) -> dict[str, Any]:
    """The JSON object in UTF-8 bytes.

    Raises:
      ValueError: says what is wrong: no JSON, no object, a key that occurs twice, nesting beyond
        the interpreter's stack, or half a surrogate pair, which no file or terminal can take.
    """
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique_keys)
        if _MAY_BE_HALF_A_CHARACTER.search(data):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError as error:
        raise ValueError(f"it holds half a surrogate pair, {error.object[error.start]!a}") from None
    if not isinstance(value, dict):
        raise ValueError("it holds no JSON object")
    return value


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
      CheckpointError: names the file, when it cannot be read or is refused by `parse_object`.
    """
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
        return parse_object(data)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read as JSON: {reason_of(error)}") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys must differ."""
    result = dict(pairs)
    if len(result) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"key {twice!a} occurs twice")
    return result
