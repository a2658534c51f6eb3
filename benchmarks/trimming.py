"""What answer-preserving trimming keeps at each context, on a generated corpus.

    python benchmarks/trimming.py

The corpus: 600 conversations of 1 to 3 turns; reasoning has log-normal length (median 12,000
tokens, sigma 1.2), answers have log-normal length (median 300, sigma 0.8).
"""

from __future__ import annotations

import collections

import numpy as np

from zaya_jax.data.chat import ChatTemplate, Part
from zaya_jax.data.conversation import Conversation, Message
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.data.trimming import Outcome, trim

CONTEXTS = (4_096, 32_768, 131_072)


def corpus(count: int = 600, seed: int = 0) -> list[Conversation]:
    """Conversations whose words are one byte token each."""
    random = np.random.default_rng(seed)

    def text(median: float, sigma: float) -> str:
        return "x" * max(1, int(random.lognormal(np.log(median), sigma)))

    return [
        Conversation(
            tuple(
                message
                for _ in range(random.integers(1, 4))
                for message in (
                    Message("user", text(200, 1.0)),
                    Message("assistant", text(300, 0.8), text(12_000, 1.2)),
                )
            )
        )
        for _ in range(count)
    ]


def main() -> None:
    tokenizer = load_tokenizer("bytes")
    template = ChatTemplate(tokenizer)
    examples = [template.render(conversation) for conversation in corpus()]
    reasoning = sum(len(s.ids) for e in examples for s in e.segments if s.part is Part.REASONING)
    header = "".join(f"{outcome:>18}" for outcome in Outcome)
    print(f"{'context':>9}{header}{'reasoning kept':>18}{'tokens':>14}")
    for context in CONTEXTS:
        outcomes: collections.Counter[Outcome] = collections.Counter()
        kept = tokens = 0
        for example in examples:
            trimmed, outcome = trim(example, context, tokenizer)
            outcomes[outcome] += 1
            if trimmed is not None:
                tokens += len(trimmed)
                kept += sum(len(s.ids) for s in trimmed.segments if s.part is Part.REASONING)
        counts = "".join(f"{outcomes[outcome]:>18,}" for outcome in Outcome)
        print(f"{context:>9,}{counts}{kept / reasoning:>18.1%}{tokens:>14,}")


if __name__ == "__main__":
    main()
