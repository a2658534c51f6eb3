"""The cached forward pass equals the full one, in whatever portions the tokens come."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.parity.cases import BATCH, CASE_BY_NAME, SEQ
from tests.parity.ours import case_variables, our_forward
from zaya_jax.config import ModelConfig
from zaya_jax.inference.cache import (
    Cache,
    CacheShape,
    bytes_per_sequence,
    bytes_per_token,
    empty_cache,
)
from zaya_jax.inference.experts import ExpertMatrices, StackedExperts, expert_feed_forward
from zaya_jax.inference.forward import (
    NOWHERE,
    Rows,
    advance_slots,
    forward,
    load_slots,
    logits_of,
    store_slots,
    write_pages,
)
from zaya_jax.inference.weights import Weights, weights_from_variables
from zaya_jax.presets import zaya1_8b

PAGE, PAGES, SLOTS = 4, 30, 3


def _step(
    config: ModelConfig, weights: Weights, cache: Cache, rows: Rows, tokens: jax.Array
) -> tuple[Cache, jax.Array, jax.Array]:
    state = load_slots(cache, rows)
    result = forward(config, weights, cache, state, rows, tokens)
    cache = store_slots(cache, rows, advance_slots(result, state, rows))
    logits = jax.vmap(lambda final: logits_of(weights, final))(result.final)
    return write_pages(config, cache, rows, result), logits, result.routes


step: Any = jax.jit(_step, static_argnums=0, donate_argnums=2)


def in_portions(
    name: str, portions: list[tuple[int, int]], width: int, kernels: str = "auto"
) -> tuple[np.ndarray, np.ndarray]:
    """Logits and routes of the case's tokens, each row advancing by its share of each portion."""
    case = CASE_BY_NAME[name]
    # Dense dispatch has no kernels: it is refused with them.
    dispatch = "grouped" if kernels == "pallas" else case.model.expert_dispatch
    config = case.model.replace(kernels=kernels, expert_dispatch=dispatch)
    tokens = case.tokens()
    weights = weights_from_variables(config, case_variables(case))
    cache = empty_cache(config, CacheShape(SLOTS, PAGE, PAGES, PAGES, True))
    rng = np.random.default_rng(0)
    table = rng.permutation(PAGES)[:20].reshape(BATCH, 10).astype(np.int32)
    done = np.zeros(BATCH, np.int32)
    logits = np.zeros((BATCH, SEQ, config.vocab_size), np.float32)
    routes = np.zeros((config.num_layers, BATCH, SEQ), np.uint8)
    for lengths in portions:
        chunk = rng.integers(0, config.vocab_size, (BATCH, width))  # rubbish past the lengths
        for row, length in enumerate(lengths):
            chunk[row, :length] = tokens[row, done[row] : done[row] + length]
        numbers = (np.array([2, 0]), done, np.asarray(lengths), table, table, np.zeros(BATCH))
        rows = Rows(*(jnp.asarray(own, jnp.int32) for own in numbers))
        cache, some_logits, some_routes = step(
            config, weights, cache, rows, jnp.asarray(chunk, jnp.int32)
        )
        for row, length in enumerate(lengths):
            place = slice(done[row], done[row] + length)
            logits[row, place] = some_logits[row, :length]
            routes[:, row, place] = some_routes[:, row, :length]
        done += np.asarray(lengths, np.int32)
    assert done.tolist() == [SEQ] * BATCH
    return logits, routes


ONE_BY_ONE = [(1, 1)] * SEQ
UNEVEN = [(7, 2), (0, 5), (1, 6), (6, 0), (7, 7), (5, 7), (7, 7), (7, 6)]


WHOLE = [(SEQ, SEQ)]

EVERY_CASE = [
    pytest.param(name, portions, width, marks=pytest.mark.slow)
    for name in ("base", "attention_bias", "conv_4_3", "conv_1_1", "heads_6_3")
    for portions, width in ((ONE_BY_ONE, 1), (WHOLE, SEQ))
]


@pytest.mark.parametrize(
    ("name", "portions", "width"),
    [
        ("sliding", ONE_BY_ONE, 1),
        ("sliding", UNEVEN, 7),
        ("attention_bias", UNEVEN, 7),
        ("conv_4_3", UNEVEN, 7),
        *EVERY_CASE,
    ],
)
def test_any_portions_give_the_full_forward(
    name: str, portions: list[tuple[int, int]], width: int
) -> None:
    states, expected = our_forward(CASE_BY_NAME[name])
    logits, routes = in_portions(name, portions, width)
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    np.testing.assert_array_equal(routes, states.routing.expert_index)


def test_a_row_without_a_sequence_leaves_no_trace() -> None:
    case = CASE_BY_NAME["base"]
    weights = weights_from_variables(case.model, case_variables(case))
    cache = empty_cache(case.model, CacheShape(SLOTS, PAGE, PAGES, 0, True))
    before = jax.tree.map(np.asarray, cache)
    table = jnp.full((1, 2), NOWHERE, jnp.int32)
    zero = jnp.zeros((1,), jnp.int32)
    rows = Rows(jnp.full((1,), NOWHERE, jnp.int32), zero, zero, table, table, zero)
    after, _, _ = step(case.model, weights, cache, rows, jnp.ones((1, 3), jnp.int32))
    jax.tree.map(np.testing.assert_array_equal, before, after)


@pytest.mark.parametrize(
    "classes",
    [[5], [1], [5, 1], [5, 1, 4, 1, 0, 5, 2, 1, 4], [1] * 6 + [5, 4], [1, 5] * 40 + [4, 4]],
)
def test_tokens_go_through_their_experts_and_no_others(classes: list[int]) -> None:
    """Against the definition; class 3 is hit by nobody, class 5 skips."""
    tokens = len(classes)
    keys = jax.random.split(jax.random.key(tokens), 4)
    x = jax.random.normal(keys[0], (tokens, 8))
    stacked = StackedExperts(
        jax.random.normal(keys[1], (5, 12, 8)), jax.random.normal(keys[2], (5, 8, 6))
    )
    apart = ExpertMatrices(*(tuple(array.at[3].set(jnp.nan)) for array in stacked))
    chosen = jnp.asarray(classes, jnp.int32)
    gate = jnp.where(chosen == 5, 0.0, jax.random.uniform(keys[3], (tokens,)))
    by_form = [
        jax.jit(expert_feed_forward, static_argnames=("dispatch", "implementation"))(
            x, chosen, gate, experts, dispatch="dense", implementation="auto"
        )
        for experts in (apart, stacked)
    ]
    np.testing.assert_allclose(*by_form, atol=1e-5)
    assert np.all(np.asarray(by_form[0])[np.asarray(chosen) == 5] == 0)


def test_cache_bytes_follow_the_formula_and_are_an_eighth_of_mha() -> None:
    config = zaya1_8b()
    mha = config.num_layers * 2 * config.hidden_size * 2  # bfloat16 keys and values of full width
    assert bytes_per_token(config) * 8 == mha
    shape = CacheShape(slots=3, page_size=16, pages=5, sliding_pages=0, keep_page_ends=False)
    cache = jax.eval_shape(lambda: empty_cache(config, shape))
    sizes = {
        n: sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(t))
        for n, t in (("pages", cache.full), ("slots", (cache.columns, cache.delayed)))
    }
    assert sizes == {"pages": 80 * bytes_per_token(config), "slots": 3 * bytes_per_sequence(config)}
