"""Prompts in the style the policy was taught, and responses as verifiers read them."""

from __future__ import annotations

import pytest

from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.rl.environments.protocol import strip_thinking
from zaya_jax.rl.prompts import PromptCodec, PromptStyle

TOKENIZER = load_tokenizer("bytes")
SPECIAL = TOKENIZER.special_tokens


def codec(style: PromptStyle) -> PromptCodec:
    return PromptCodec(TOKENIZER, style)


def shown(ids: list[int]) -> str:
    return TOKENIZER.decode(ids, keep_special=True)


def test_a_plain_prompt_is_bos_and_the_text() -> None:
    plain = codec(PromptStyle.PLAIN)
    assert plain.encode("1+1=") == [TOKENIZER.bos_id, *TOKENIZER.encode("1+1=")]
    assert plain.stop_token == TOKENIZER.eos_id


def test_a_thinking_prompt_opens_the_block_of_an_assistants_turn() -> None:
    ids = codec(PromptStyle.THINKING).encode("1+1=")
    assert ids.count(TOKENIZER.bos_id) == 1
    assert shown(ids).endswith("<|im_start|>assistant\n<think>\n")
    assert "<|im_start|>user\n1+1=<|im_end|>" in shown(ids)
    closed = shown(codec(PromptStyle.DIRECT).encode("1+1="))
    assert "</think>" in closed
    assert closed.index("</think>") > closed.index("<think>")


def test_an_answer_counts_only_after_the_end_of_thinking() -> None:
    thinking = codec(PromptStyle.THINKING)
    close, stop = SPECIAL["</think>"], thinking.stop_token
    assert stop == TOKENIZER.end_of_turn_id
    finished = [*TOKENIZER.encode("one and one\n"), close, *TOKENIZER.encode("\n\n2"), stop]
    answer = strip_thinking(thinking.decode(finished))
    assert answer is not None
    assert answer.strip() == "2"
    # The prompt opened the block: a response that never closes it has no answer.
    assert strip_thinking(thinking.decode(TOKENIZER.encode("2"))) is None


@pytest.mark.parametrize("style", PromptStyle)
def test_ids_without_a_token_do_not_vanish_from_an_answer(style: PromptStyle) -> None:
    ids = [*TOKENIZER.encode("12"), 271, *TOKENIZER.encode("3"), codec(style).stop_token]
    assert codec(style).decode(ids).endswith("12\ufffd3")
