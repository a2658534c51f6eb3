"""Tokenised examples of one source: what is packed whole into windows."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from jaxtyping import Int32, Int64, UInt8

from zaya_jax.data.chat import ChatTemplate
from zaya_jax.data.config import DataConfig, DataError
from zaya_jax.data.conversation import Conversation
from zaya_jax.data.prepared import (
    PreparedExamples,
    is_prepared,
    manifest_fingerprint,
    part_of,
    read_manifest,
)
from zaya_jax.data.samples import Sample, read_samples
from zaya_jax.data.sources import documents_fingerprint, split
from zaya_jax.data.tokenizer import Tokenizer
from zaya_jax.data.trimming import Outcome, trim

Piece = tuple[np.ndarray, np.ndarray]  # ids int32 and learnt flags float32, equally long


@dataclasses.dataclass(frozen=True)
class Examples:
    """Token ids of all examples, one behind the other in a single array.

    Attributes:
      tokens: ids; an example of n + 1 ids fills n positions of a window.
      learnt: 1 where predicting the token is to be learnt.
      starts: of each example; the last entry is the end.
    """

    tokens: Int32[np.ndarray, " tokens"]
    learnt: UInt8[np.ndarray, " tokens"]
    starts: Int64[np.ndarray, " examples_and_end"]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Int64[np.ndarray, " examples"]:
        """Positions each example fills."""
        return np.diff(self.starts) - 1

    def example(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids and learnt flags of one example."""
        span = slice(self.starts[index], self.starts[index + 1])
        return self.tokens[span], self.learnt[span]


AnyExamples = Examples | PreparedExamples  # in memory, or on disk


@dataclasses.dataclass(frozen=True)
class SourceExamples:
    """Both parts of a source, tokenised and trimmed to the window."""

    name: str
    train: AnyExamples
    validation: AnyExamples
    fingerprint: str  # of the training samples, before tokenising
    outcomes: dict[str, int]  # conversations by what trimming did; see `trimming.Outcome`
    notes: tuple[str, ...]  # lines for people: unusable rows, repeats, trimming


def load_examples(source: str, config: DataConfig, tokenizer: Tokenizer) -> SourceExamples:
    """Reads, splits, tokenises and trims one source.

    Raises:
      DataError: when the source is unusable, or too small to hold some out.
    """
    if is_prepared(source):
        return _load_prepared(source, config, tokenizer)
    samples = read_samples(source, config)
    train, validation = split(samples.samples, config.validation_fraction)
    if not train or not validation:
        raise DataError(
            f"source {source!r} holds {len(samples.samples)} example(s): too few to hold some out "
            "for validation. Add data, or raise max_bytes"
        )
    encoder = Encoder(config, tokenizer)
    parts = [
        join(piece for s in part for piece in encoder.pieces(s)) for part in (train, validation)
    ]
    if not all(len(part) for part in parts):
        raise DataError(
            f"source {source!r}: no example fits sequence_length={config.sequence_length}; raise it"
        )
    notes = [samples.bad.summary(), _repeats(source, samples.repeated), encoder.summary(source)]
    return SourceExamples(
        samples.name,
        parts[0],
        parts[1],
        documents_fingerprint(train),
        {str(outcome): encoder.outcomes[outcome] for outcome in Outcome},
        tuple(note for note in notes if note),
    )


class Encoder:
    """From samples to pieces that fit a window; counts what trimming does."""

    def __init__(self, config: DataConfig, tokenizer: Tokenizer) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._template: ChatTemplate | None = None  # made when the first conversation comes
        self.outcomes: collections.Counter[Outcome] = collections.Counter()

    def pieces(self, sample: Sample) -> list[Piece]:
        """At most `sequence_length + 1` ids each: texts are cut, conversations trimmed or dropped.

        Raises:
          DataError: for token ids outside the tokenizer.
        """
        if isinstance(sample.content, Conversation):
            return self._conversation(sample.content)
        if isinstance(sample.content, str):
            text = self._tokenizer.encode(sample.content)
            ids = [self._tokenizer.bos_id, *text, self._tokenizer.eos_id]
        else:
            ids = self._checked(sample)
        tokens, window = np.asarray(ids, np.int32), self._config.sequence_length
        cut = [tokens[first : first + window + 1] for first in range(0, len(tokens) - 1, window)]
        return [(piece, np.ones(piece.size, np.float32)) for piece in cut]

    def summary(self, source: str) -> str:
        """One line about trimming; empty when nothing was cut."""
        changed = sum(n for outcome, n in self.outcomes.items() if outcome is not Outcome.KEPT)
        if not changed:
            return ""
        counts = ", ".join(f"{self.outcomes[outcome]:,} {outcome}" for outcome in Outcome)
        return f"{source}: conversations at {self._config.sequence_length} tokens: {counts}"

    def _conversation(self, conversation: Conversation) -> list[Piece]:
        if self._template is None:
            self._template = ChatTemplate(self._tokenizer)
        rendered = self._template.render(conversation, thinking=self._config.thinking)
        trimmed, outcome = trim(rendered, self._config.sequence_length + 1, self._tokenizer)
        self.outcomes[outcome] += 1
        return [] if trimmed is None else [trimmed.arrays()]

    def _checked(self, sample: Sample) -> list[int]:
        ids = np.asarray(sample.content)
        if ids.min() < 0 or ids.max() >= self._tokenizer.vocab_size:
            wrong = ids.max() if ids.min() >= 0 else ids.min()
            raise DataError(
                f"{sample.place}: token id {wrong} is outside tokenizer {self._tokenizer.name!r}; "
                "these files were made with another one"
            )
        has_bos = ids[0] == self._tokenizer.bos_id
        plain: list[int] = ids.tolist()
        return plain if has_bos else [self._tokenizer.bos_id, *plain]


def _load_prepared(source: str, config: DataConfig, tokenizer: Tokenizer) -> SourceExamples:
    manifest = read_manifest(source, config, tokenizer)
    return SourceExamples(
        Path(source).name,
        part_of(source, manifest, "train"),
        part_of(source, manifest, "validation"),
        manifest_fingerprint(manifest),
        manifest["outcomes"],
        (),
    )


def join(pieces: Iterable[Piece]) -> Examples:
    """Pieces in one array; those of a single token, which predict nothing, are left out."""
    usable = [(ids, learnt) for ids, learnt in pieces if ids.size > 1]
    sizes = [ids.size for ids, _ in usable]
    empty = np.zeros(0, np.int32)
    return Examples(
        np.concatenate([empty, *(ids for ids, _ in usable)]).astype(np.int32),
        np.concatenate([empty, *(learnt for _, learnt in usable)]).astype(np.uint8),
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
    )


def _repeats(source: str, count: int) -> str:
    return f"{source}: {count:,} repeated rows were left out" if count else ""
