"""Which tokens may be text, and their text as they come, cut at stop strings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool

from zaya_jax.config import ModelConfig
from zaya_jax.data.tokenizer import Tokenizer

_CUT = "\N{REPLACEMENT CHARACTER}"
_MOST_TOKENS_OF_A_CHARACTER = 4


class TextStream:
    """Turns tokens into text one at a time.

    Text is withheld while it may be part of a character or of a stop string that is not complete.

    Attributes:
      text: all text up to the stop string, if one came; what is withheld included.
      stopped: whether a stop string came.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self.text = ""
        self.stopped = False
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._pending: list[int] = []  # tokens whose text may still change
        self._context: list[int] = []  # tokens before them, whose text they may lean on

    def push(self, token: int) -> None:
        """Adds a token; control tokens appear as their text."""
        if self.stopped:
            return
        self._pending.append(token)
        before = self._decode(self._context)
        after = self._decode([*self._context, *self._pending])
        if after.endswith(_CUT) and len(self._pending) < _MOST_TOKENS_OF_A_CHARACTER:
            return
        self._append(after[len(before) :])
        self._context, self._pending = self._pending, []

    def finish(self) -> None:
        """Adds what is withheld: nothing more will come."""
        if self._pending and not self.stopped:
            before = self._decode(self._context)
            self._append(self._decode([*self._context, *self._pending])[len(before) :])
            self._pending = []

    @property
    def settled(self) -> int:
        """Length of the text that no stop string to come can take back."""
        if self.stopped:
            return len(self.text)
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(self.text)), longest, -1):
                if self.text.endswith(stop[:length]):
                    longest = length
                    break
        return len(self.text) - longest

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, keep_special=True)

    def _append(self, text: str) -> None:
        longest = max((len(stop) for stop in self._stop), default=0)
        start = max(0, len(self.text) - longest)
        self.text += text
        places = [self.text.find(stop, start) for stop in self._stop]
        found = [place for place in places if place >= 0]
        if found:
            self.text = self.text[: min(found)]
            self.stopped = True


def allowed_tokens(config: ModelConfig, tokenizer: Tokenizer | None) -> Bool[np.ndarray, " vocab"]:
    """Which ids may be drawn: not padding or bos, nor rows of the head without a token."""
    if tokenizer is None:
        return np.ones((config.vocab_size,), np.bool_)
    allowed = np.zeros((config.vocab_size,), np.bool_)
    allowed[: tokenizer.vocab_size] = True
    allowed[[tokenizer.pad_id, tokenizer.bos_id]] = False
    allowed[tokenizer.eos_id] = True  # some tokenizers close documents with one of those two
    return allowed
