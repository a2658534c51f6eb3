"""What a source holds before tokenising: texts, conversations or token ids, in a fixed order."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from zaya_jax.data.aggregation_examples import is_aggregation_source, read_aggregation
from zaya_jax.data.bad_rows import BadRows
from zaya_jax.data.config import DataConfig, DataError
from zaya_jax.data.conversation import Conversation, RowError, parse_conversation
from zaya_jax.data.megatron import read_megatron
from zaya_jax.data.reasoning_problems import is_problem_source, read_problems
from zaya_jax.data.row_files import BadRow, Row, read_rows, row_files_of
from zaya_jax.data.sources import READERS, read_text
from zaya_jax.data.text_files import ReadResult
from zaya_jax.data.tokenizer import tokenizer_of


@dataclasses.dataclass(frozen=True)
class Sample:
    """One text, conversation or array of token ids, and where it stands."""

    place: str
    digest: str  # of the content, hexadecimal
    content: str | Conversation | np.ndarray


@dataclasses.dataclass(frozen=True)
class Samples:
    """All of a source, without repeats."""

    name: str
    samples: tuple[Sample, ...]
    bad: BadRows
    repeated: int


def read_samples(source: str, config: DataConfig, *, may_be_empty: bool = False) -> Samples:
    """Reads a source by name, path or URL; see `docs/data.md` for the kinds.

    Args:
      source: what to read.
      config: limits on bytes and on bad rows.
      may_be_empty: whether a source without anything usable is one without samples.

    Raises:
      DataError: when there is no such source, it holds nothing usable, or too many bad rows.
    """
    bad = BadRows(source, config.max_bad_rows)
    unique: dict[str, Sample] = {}
    total = read = 0
    for sample in _read(source, config, bad):
        read += 1
        if sample.digest not in unique:
            unique[sample.digest] = sample
            total += _size(sample)
        if config.max_bytes is not None and total >= config.max_bytes:
            break
    if not unique and not may_be_empty:
        found = f": {bad.summary()}" if bad.count else ""
        raise DataError(f"source {source!r} holds nothing to train on{found}")
    return Samples(_name(source), tuple(unique.values()), bad, read - len(unique))


def _name(source: str) -> str:
    """What records call the source: its own name, or the last part of its path."""
    named = source in READERS or is_problem_source(source) or is_aggregation_source(source)
    return source.partition("?")[0] if named else Path(source).name


def _read(source: str, config: DataConfig, bad: BadRows) -> Iterator[Sample]:
    if is_problem_source(source):
        for number, row in enumerate(read_problems(source), start=1):
            yield _from_row(Row(f"{source}:{number}", row))
        return
    if is_aggregation_source(source):
        yield from _from_rows(read_aggregation(source, tokenizer_of(config)), bad)
        return
    if source in READERS:
        yield from _from_texts(READERS[source](config.max_bytes), bad)
        return
    files = row_files_of(source)
    if files:
        for file in files:
            yield from _from_rows(read_rows(file), bad)
    elif source.endswith((".bin", ".idx")):
        for number, tokens in enumerate(read_megatron(source), start=1):
            digest = hashlib.sha256(tokens.tobytes()).hexdigest()
            if tokens.size:
                yield Sample(f"{source}:{number}", digest, tokens)
            else:
                bad.note(f"{source}:{number}", "an empty document")
    else:
        yield from _from_texts(read_text(source, config.max_bytes)[1], bad)


def _from_texts(result: ReadResult, bad: BadRows) -> Iterator[Sample]:
    for name in range(result.skipped):
        bad.note(f"file {name + 1} of those left out", "unreadable, binary or not UTF-8")
    for document in result.documents:
        yield Sample(document.name, document.digest, document.text)


def _from_rows(rows: Iterable[Row | BadRow], bad: BadRows) -> Iterator[Sample]:
    for row in rows:
        if isinstance(row, BadRow):
            bad.note(row.place, row.reason)
            continue
        try:
            yield _from_row(row)
        except RowError as error:
            bad.note(row.place, str(error))


def _from_row(row: Row) -> Sample:
    fields = row.fields
    if fields.get("messages") is not None:
        conversation = parse_conversation(fields)
        fields = dataclasses.asdict(conversation)
        _digest(json.dumps(fields, ensure_ascii=False, default=str))  # refuses half characters
        plain = json.dumps(fields, sort_keys=True, default=str)
        return Sample(row.place, _digest(plain), conversation)
    text = fields.get("text")
    if text is None:
        raise RowError("neither 'text' nor 'messages'")
    if not isinstance(text, str):
        raise RowError(f"'text' is {type(text).__name__}, expected text")
    if not text.strip():
        raise RowError("'text' is empty")
    return Sample(row.place, _digest(text), text)


def _digest(text: str) -> str:
    try:
        return hashlib.sha256(text.encode("utf-8")).hexdigest()
    except UnicodeEncodeError:
        raise RowError("half of a surrogate pair, which UTF-8 cannot represent") from None


def _size(sample: Sample) -> int:
    if isinstance(sample.content, str):
        return len(sample.content.encode("utf-8"))
    if isinstance(sample.content, np.ndarray):
        return sample.content.nbytes
    messages = sample.content.messages
    return sum(len(f"{m.reasoning or ''}{m.content}".encode()) for m in messages)
