"""How a problem becomes the policy's prompt, and its response the text that a verifier reads."""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Sequence

from zaya_jax.data.chat import ChatTemplate
from zaya_jax.data.conversation import Conversation, Message
from zaya_jax.data.tokenizer import Tokenizer
from zaya_jax.rl.environments.protocol import THINK_START


class PromptStyle(enum.StrEnum):
    """What surrounds the problem."""

    THINKING = "thinking"  # a user's turn, and an assistant's whose think block is open
    DIRECT = "direct"  # a user's turn, and an assistant's that does not think
    PLAIN = "plain"  # bos and nothing else, for policies that know no turns


@dataclasses.dataclass(frozen=True)
class PromptCodec:
    """Text to tokens and back for one tokenizer and style."""

    tokenizer: Tokenizer
    style: PromptStyle

    @property
    def stop_token(self) -> int:
        """Ends a response."""
        end = self.tokenizer.end_of_turn_id
        return self.tokenizer.eos_id if self.style is PromptStyle.PLAIN or end is None else end

    def encode(self, text: str) -> list[int]:
        """A problem as the policy sees it.

        Raises:
          DataError: when the tokenizer lacks the control tokens of the chat template.
        """
        if self.style is PromptStyle.PLAIN:
            return [self.tokenizer.bos_id, *self.tokenizer.encode(text)]
        rendered = ChatTemplate(self.tokenizer).render(
            Conversation((Message("user", text),)),
            thinking=self.style is PromptStyle.THINKING,
            generation_prompt=True,
        )
        return [int(token) for token in rendered.arrays()[0]]

    def decode(self, ids: Sequence[int]) -> str:
        """A response as its verifier sees it.

        With the think block that the prompt opened; ids that are no token (the head has spare rows)
        show.
        """
        known = self.tokenizer.vocab_size
        parts = [THINK_START] if self.style is PromptStyle.THINKING else []
        for is_known, run in itertools.groupby(ids, key=lambda i: i < known):
            text = [i for i in run if i not in (self.stop_token, self.tokenizer.eos_id)]
            if is_known:
                parts.append(self.tokenizer.decode(text, keep_special=True))
            else:
                parts.append("\ufffd" * len(text))
        return "".join(parts)
