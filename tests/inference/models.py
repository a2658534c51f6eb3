"""Small random models in which every path matters, compiled once for all tests of this folder."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from tests.parity.cases import ParityCase
from tests.parity.ours import case_variables
from zaya_jax.config import LayerType, ModelConfig
from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.inference.engine import Engine
from zaya_jax.inference.request import Completion
from zaya_jax.inference.settings import EngineSettings
from zaya_jax.model.transformer import Transformer

TINY = ModelConfig(
    vocab_size=48,
    hidden_size=32,
    num_layers=2,
    num_query_heads=4,
    num_kv_heads=2,
    head_dim=8,
    num_experts=4,
    expert_intermediate_size=24,
    router_hidden_size=8,
    max_position_embeddings=96,
    layer_pattern=(LayerType.SLIDING, LayerType.FULL),
    sliding_window=7,
    activation_dtype="float32",
)
LENGTH = 64  # of the sequences that the full forward pass is compiled for


def tiny_case(seed: int = 2, **changes: Any) -> ParityCase:
    return ParityCase("tiny", TINY.replace(**changes), seed=seed)


@functools.cache
def tiny_variables(seed: int = 2) -> dict[str, Any]:
    return case_variables(tiny_case(seed))


@functools.cache
def _full_forward() -> Any:
    return jax.jit(lambda variables, tokens: Transformer(TINY).apply(variables, tokens))


def trainer(variables: dict[str, Any], tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities [tokens, vocab] and router classes [tokens, layers] of the full forward."""
    padded = np.zeros((1, LENGTH), np.int32)
    padded[0, : len(tokens)] = tokens
    output = _full_forward()(variables, padded)
    log_probabilities = np.asarray(jax.nn.log_softmax(output.logits[0, : len(tokens)], axis=-1))
    return log_probabilities, np.asarray(output.routing.expert_index)[:, 0, : len(tokens)].T


def assert_as_trained(variables: dict[str, Any], completion: Completion, *, greedy: bool) -> None:
    """Raw log-probabilities, routes and, where greedy, tokens are those of the full forward."""
    tokens = [*completion.prompt, *completion.tokens]
    log_probabilities, routes = trainer(variables, tokens)
    predicting = log_probabilities[len(completion.prompt) - 1 : -1]
    expected = predicting[np.arange(len(completion.tokens)), completion.tokens]
    np.testing.assert_allclose(completion.raw_log_probabilities, expected, atol=1e-5)
    np.testing.assert_array_equal(completion.routes, routes[:-1])
    if greedy:
        assert completion.tokens == predicting.argmax(axis=-1).tolist()
    else:
        np.testing.assert_allclose(completion.log_probabilities, expected, atol=1e-5)


def prompt(seed: int, length: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, TINY.vocab_size, length).tolist())


# Reads and writes bytes: for everything that has to do with text.
TEXT_MODEL = TINY.replace(vocab_size=272, max_position_embeddings=512)


@functools.cache
def text_engine() -> Engine:
    """One for all tests; they leave it idle."""
    settings = EngineSettings(
        slots=4,
        page_size=16,
        cache_tokens=2_048,
        prefill_chunk=64,
        decode_steps=4,
        least_rows=4,
        least_table=32,
    )
    tokenizer = load_tokenizer("bytes")
    variables = case_variables(ParityCase("text", TEXT_MODEL, seed=3))
    return Engine(TEXT_MODEL, variables, tokenizer, settings)
