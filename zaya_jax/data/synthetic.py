"""Made-up text with some structure, for tests: no disk, the same on every machine."""

from __future__ import annotations

import random

from zaya_jax.data.text_files import Document, ReadResult

_DOCUMENTS = 200
_SUBJECTS = ("the cat", "a router", "an expert", "the queue", "one token", "the naïve reader")
_VERBS = ("sees", "weighs", "skips", "sorts", "follows", "forgets")
_OBJECTS = ("the gate", "a window", "seven keys", "the value", "its neighbour", "über-long lines")


def read_synthetic(max_bytes: int | None) -> ReadResult:
    """Two hundred documents of 1 to 30 sentences with predictable grammar."""
    documents: list[Document] = []
    total = 0
    for index in range(_DOCUMENTS):
        rng = random.Random(index)
        sentences = [f"Note {index}."]
        for _ in range(rng.randint(1, 30)):
            sentences.append(
                f"{rng.choice(_SUBJECTS)} {rng.choice(_VERBS)} {rng.choice(_OBJECTS)}."
            )
        text = "\n".join(sentences) + "\n"
        documents.append(Document(f"synthetic/{index}", text))
        total += len(text.encode("utf-8"))
        if max_bytes is not None and total >= max_bytes:
            break
    return ReadResult(tuple(documents), skipped=0)
