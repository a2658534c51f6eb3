"""Answer-preserving trimming, as properties over generated conversations."""

from __future__ import annotations

import hypothesis
from hypothesis import strategies as st

from zaya_jax.data.chat import ChatTemplate, Part, Rendered
from zaya_jax.data.conversation import Conversation, Message
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.data.trimming import Outcome, trim

TOKENIZERS = [load_tokenizer(name) for name in ("bytes", "zaya_demo_8k")]
QUICK = hypothesis.settings(max_examples=60, deadline=None)

TEXT = st.text(st.sampled_from(list("ab c\nдé中😀</think>")), min_size=1, max_size=30)
ANSWERS = TEXT.filter(lambda text: text.strip())
REASONING = st.one_of(st.none(), TEXT.map(lambda text: text.strip("\n")))
TURN = st.tuples(
    st.sampled_from(["user", "tool"]).flatmap(lambda r: st.builds(Message, st.just(r), ANSWERS)),
    st.builds(Message, st.just("assistant"), ANSWERS, REASONING),
)
CONVERSATIONS = st.lists(TURN, min_size=1, max_size=3).map(
    lambda turns: Conversation(tuple(message for turn in turns for message in turn))
)
EXAMPLES = st.tuples(CONVERSATIONS, st.sampled_from(TOKENIZERS), st.integers(0, 400))


def _render(conversation: Conversation, tokenizer: object) -> Rendered:
    return ChatTemplate(tokenizer).render(conversation)


def _ids(rendered: Rendered, part: Part, turn: int | None = None) -> list[int]:
    chosen = [s for s in rendered.segments if s.part is part and turn in (None, s.turn)]
    return [token for segment in chosen for token in segment.ids]


@QUICK
@hypothesis.given(EXAMPLES)
def test_never_over_budget_and_all_that_is_not_reasoning_stays(example: tuple):
    conversation, tokenizer, budget = example
    full = _render(conversation, tokenizer)
    trimmed, outcome = trim(full, budget, tokenizer)
    if trimmed is None:
        assert outcome is Outcome.DROPPED
        return
    assert len(trimmed) <= budget
    assert _ids(trimmed, Part.FIXED) == _ids(full, Part.FIXED)
    last = max(segment.turn for segment in full.segments)
    kept = _ids(trimmed, Part.REASONING, last)
    assert kept == _ids(full, Part.REASONING, last)[: len(kept)]
    assert _ids(trimmed, Part.BLOCK, last) == _ids(full, Part.BLOCK, last)


@QUICK
@hypothesis.given(EXAMPLES)
def test_the_budget_is_used_up_to_the_end_of_a_character(example: tuple):
    conversation, tokenizer, budget = example
    trimmed, outcome = trim(_render(conversation, tokenizer), budget, tokenizer)
    if outcome is Outcome.CUT:
        assert trimmed is not None
        assert budget - 3 <= len(trimmed) <= budget


@QUICK
@hypothesis.given(EXAMPLES)
def test_idempotent(example: tuple):
    conversation, tokenizer, budget = example
    trimmed, _ = trim(_render(conversation, tokenizer), budget, tokenizer)
    if trimmed is not None:
        assert trim(trimmed, budget, tokenizer) == (trimmed, Outcome.KEPT)


@QUICK
@hypothesis.given(EXAMPLES)
def test_a_larger_budget_never_keeps_less(example: tuple):
    conversation, tokenizer, budget = example
    full = _render(conversation, tokenizer)
    lengths = [
        len(trimmed) if (trimmed := trim(full, b, tokenizer)[0]) is not None else 0
        for b in range(budget, budget + 12)
    ]
    assert lengths == sorted(lengths)


@QUICK
@hypothesis.given(EXAMPLES)
def test_the_result_is_whole_text(example: tuple):
    """No half character at the cut."""
    conversation, tokenizer, budget = example
    trimmed, _ = trim(_render(conversation, tokenizer), budget, tokenizer)
    if trimmed is not None:
        assert "\ufffd" not in tokenizer.decode(trimmed.arrays()[0].tolist(), keep_special=True)


def _two_turns() -> Conversation:
    return Conversation(
        (
            Message("user", "u"),
            Message("assistant", "first", "r" * 50),
            Message("user", "v"),
            Message("assistant", "second", "s" * 50),
        )
    )


def test_the_rules_in_their_order():
    tokenizer = TOKENIZERS[0]
    full = _render(_two_turns(), tokenizer)
    outcomes = [trim(full, budget, tokenizer)[1] for budget in range(len(full), 0, -1)]
    assert outcomes[0] is Outcome.KEPT
    order = [Outcome.KEPT, Outcome.CUT, Outcome.EARLIER_DROPPED, Outcome.DROPPED]
    assert list(dict.fromkeys(outcomes)) == order
    # One by one down to no reasoning in the last turn, then the earlier block goes.
    assert outcomes.count(Outcome.CUT) == 50
    trimmed, _ = trim(full, len(full) - 51, tokenizer)
    assert trimmed is not None
    text = tokenizer.decode(trimmed.arrays()[0].tolist(), keep_special=True)
    assert "<|im_start|>assistant\nfirst<|im_end|>" in text
    assert "s" * 50 in text


def test_a_last_turn_without_reasoning_gives_up_the_earlier_blocks():
    tokenizer = TOKENIZERS[0]
    conversation = Conversation((*_two_turns().messages[:3], Message("assistant", "second")))
    full = _render(conversation, tokenizer)
    trimmed, outcome = trim(full, len(full) - 1, tokenizer)
    assert outcome is Outcome.EARLIER_DROPPED
    assert trimmed is not None
    assert _ids(trimmed, Part.REASONING) == []
