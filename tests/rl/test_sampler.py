"""The plain sampler: the trainer's own numbers, and draws that depend on the seed alone."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

from tests.rl.tiny_policy import MODEL, variables
from zaya_jax.model.transformer import Transformer
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.sampler import ForwardSampler, Sampled

STOP = 3
PROMPTS = [[5], [7, 8, 9], [5, 6]] * 8


@functools.cache
def sampler() -> ForwardSampler:
    return ForwardSampler(MODEL, variables(), stop_token=STOP, most_prompt_tokens=4, most_tokens=6)


@functools.cache
def drawn() -> tuple[Sampled, ...]:
    return tuple(sampler().sample(PROMPTS, list(range(24))))


def test_log_probabilities_and_routes_are_those_of_the_model() -> None:
    forward = jax.jit(lambda made, tokens: Transformer(MODEL).apply(made, tokens))
    for prompt, one in list(zip(PROMPTS, drawn(), strict=True))[:6]:
        sequence = np.zeros((1, 10), np.int32)
        n = len(prompt) + len(one.tokens)
        sequence[0, :n] = [*prompt, *one.tokens]
        out = forward(variables(), sequence)
        table = np.asarray(jax.nn.log_softmax(out.logits, axis=-1))[0]
        expected = table[np.arange(len(prompt) - 1, n - 1), one.tokens]
        np.testing.assert_allclose(one.log_probs, expected, atol=1e-5)
        np.testing.assert_array_equal(
            one.routes, np.asarray(out.routing.expert_index)[:, 0, : n - 1].T
        )


def test_responses_end_at_the_stop_token_or_at_their_length() -> None:
    for one in drawn():
        ended = one.tokens[-1] == STOP
        assert STOP not in one.tokens[:-1]
        assert one.truncated == (not ended)
        assert ended or len(one.tokens) == 6
        assert len(one.tokens) == len(one.log_probs) == len(one.versions)
    stop = int(drawn()[0].tokens[2])  # a token that is drawn, so that a response does end
    own = ForwardSampler(MODEL, variables(), stop_token=stop, most_prompt_tokens=4, most_tokens=6)
    first = own.sample(PROMPTS, list(range(24)))[0]
    assert not first.truncated
    assert first.tokens.tolist() == drawn()[0].tokens[: len(first.tokens)].tolist()
    assert first.tokens[-1] == stop


def test_a_seed_draws_the_same_wherever_it_stands() -> None:
    again = sampler().sample(PROMPTS[::-1], list(range(24))[::-1])[::-1]
    for a, b in zip(drawn(), again, strict=True):
        np.testing.assert_array_equal(a.tokens, b.tokens)
    alike = sampler().sample([[5]] * 24, list(range(24)))
    assert len({tuple(one.tokens.tolist()) for one in alike}) > 12


def test_weights_have_versions_and_tokens_carry_them() -> None:
    own = ForwardSampler(MODEL, variables(), stop_token=STOP, most_prompt_tokens=4, most_tokens=6)
    assert own.version == 0
    assert own.load_weights(variables()) == 1
    assert set(own.sample(PROMPTS, list(range(24)))[0].versions.tolist()) == {1}


@pytest.mark.parametrize("prompt", [[], [1] * 5])
def test_prompts_that_do_not_fit_are_refused(prompt: list[int]) -> None:
    with pytest.raises(RLError, match=f"a prompt of {len(prompt)} tokens: must be 1 to 4"):
        sampler().sample([prompt], [0])


def test_sequences_longer_than_the_model_are_refused() -> None:
    with pytest.raises(RLError, match="exceed the model's 64 positions"):
        ForwardSampler(MODEL, variables(), stop_token=3, most_prompt_tokens=60, most_tokens=5)
