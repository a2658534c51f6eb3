"""Tokenised documents and the window-sized pieces they are cut into."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32, Int64

from zaya_jax.data.text_files import Document
from zaya_jax.data.tokenizer import Tokenizer

_DOCUMENTS_AT_ONCE = 64  # bounds the memory of encoding objects


@dataclasses.dataclass(frozen=True)
class TokenizedDocuments:
    """Documents as `bos + text + eos`, one behind the other in a single array."""

    tokens: Int32[np.ndarray, " tokens"]
    starts: Int64[np.ndarray, " documents_and_end"]  # of each document; last entry: the end


def tokenize(documents: Sequence[Document], tokenizer: Tokenizer) -> TokenizedDocuments:
    """Encode documents in their order, in parallel where the tokenizer can."""
    bos = np.asarray([tokenizer.bos_id], np.int32)
    eos = np.asarray([tokenizer.eos_id], np.int32)
    parts: list[np.ndarray] = []
    starts = [0]
    for first in range(0, len(documents), _DOCUMENTS_AT_ONCE):
        texts = [document.text for document in documents[first : first + _DOCUMENTS_AT_ONCE]]
        for ids in tokenizer.encode_batch(texts):
            parts += [bos, ids, eos]
            starts.append(starts[-1] + ids.size + 2)
    return TokenizedDocuments(np.concatenate(parts), np.asarray(starts, np.int64))


class PieceSource:
    """Pieces of documents by index, as grain reads them.

    A document of n tokens is n - 1 pairs of a token and the next one, its target. These pairs are
    cut into pieces of `sequence_length`, the last one shorter. A piece is a dict of `tokens` and
    `targets` (int32) and `loss_weights` (float32), each `[length]`.
    """

    def __init__(self, documents: TokenizedDocuments, sequence_length: int) -> None:
        self._tokens = documents.tokens
        spans = [
            (first, min(first + sequence_length, end - 1))
            for start, end in zip(documents.starts[:-1], documents.starts[1:], strict=True)
            for first in range(start, end - 1, sequence_length)
        ]
        self._spans = np.asarray(spans, np.int64).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        start, end = self._spans[index]
        return {
            "tokens": self._tokens[start:end],
            "targets": self._tokens[start + 1 : end + 1],
            "loss_weights": np.ones(end - start, np.float32),
        }
