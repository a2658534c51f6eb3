"""Documents become pieces that hold every pair of neighbours exactly once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from zaya_jax.data import load_tokenizer
from zaya_jax.data.text_files import Document
from zaya_jax.data.windows import PieceSource, tokenize

TOKENIZER = load_tokenizer("bytes")


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 30])
def test_pieces_cover_every_pair_of_neighbours_once(length):
    documents = [Document("a", "x" * length), Document("b", "end")]
    pieces = PieceSource(tokenize(documents, TOKENIZER), sequence_length=8)
    pairs = [
        (int(token), int(target))
        for index in range(len(pieces))
        for token, target in zip(pieces[index]["tokens"], pieces[index]["targets"], strict=True)
    ]
    expected = []
    for document in documents:
        ids = [TOKENIZER.bos_id, *TOKENIZER.encode(document.text), TOKENIZER.eos_id]
        expected += itertools.pairwise(ids)
    assert pairs == expected  # in particular no pair crosses from one document into the next
    sizes = [pieces[index]["tokens"].size for index in range(len(pieces))]
    assert min(sizes) >= 1
    assert max(sizes) <= 8


def test_tokenizing_in_groups_changes_nothing(monkeypatch):
    documents = [Document(str(i), "word " * (i + 1)) for i in range(7)]
    whole = tokenize(documents, TOKENIZER)
    monkeypatch.setattr("zaya_jax.data.windows._DOCUMENTS_AT_ONCE", 2)
    grouped = tokenize(documents, TOKENIZER)
    np.testing.assert_array_equal(whole.tokens, grouped.tokens)
    np.testing.assert_array_equal(whole.starts, grouped.starts)
