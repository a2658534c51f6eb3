"""The engine's programs run the kernels, and these see the same keys as the XLA form."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels_pallas.backend import INTERPRETER, Target, compile_for
from kernels_pallas.machine_code import triton_kernels
from tests.inference.models import TINY, tiny_variables
from tests.inference.test_forward import ONE_BY_ONE, UNEVEN, in_portions
from tests.parity.cases import CASE_BY_NAME
from tests.parity.ours import our_forward
from zaya_jax.inference.attention import Past, _attend, _attend_by_kernel
from zaya_jax.inference.cache import CacheShape, empty_cache
from zaya_jax.inference.forward import Rows, forward, load_slots, logits_of
from zaya_jax.inference.weights import weights_from_variables

ROWS, PAST = 3, 24


def kernels_of_pass(seq: int) -> set[str]:
    """Names of the kernels in a pass over `seq` new tokens a row, lowered for an MI300X."""
    config = TINY.replace(kernels="pallas", activation_dtype="bfloat16")
    weights = weights_from_variables(config, tiny_variables())

    def one_pass(weights: Any, tokens: Any) -> Any:
        cache = empty_cache(config, CacheShape(ROWS, 8, 9, 9, False))
        table = jnp.arange(9, dtype=jnp.int32).reshape(ROWS, 3)
        start = jnp.asarray([0, 5, 16], jnp.int32)
        rows = Rows(jnp.arange(ROWS), start, jnp.full(ROWS, seq), table, table, 0 * start)
        result = forward(config, weights, cache, load_slots(cache, rows), rows, tokens)
        return logits_of(weights, result.final[:, 0])

    tokens = jnp.zeros((ROWS, seq), jnp.int32)
    with compile_for(Target("mi300x")):
        return {name for name, *_ in triton_kernels(one_pass, weights, tokens, target="mi300x")}


EXPERTS = {"expert_gate_up", "expert_down"}


def test_a_decode_step_runs_decode_attention_and_the_other_kernels() -> None:
    assert kernels_of_pass(1) == {"norm_forward", "cca_forward", "attention_decode"} | EXPERTS


@pytest.mark.slow
def test_a_chunk_of_prompts_runs_flash_attention() -> None:
    assert kernels_of_pass(8) == {"norm_forward", "cca_forward", "attention_forward"} | EXPERTS


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("seq", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_kernels_see_the_keys_that_the_xla_form_sees(seq: int, window: int | None) -> None:
    """Rows that begin, that continue, and one whose last page has no room for the whole chunk."""
    keys = jax.random.split(jax.random.key(seq), 5)
    query = jax.random.normal(keys[0], (ROWS, seq, 4, 8))
    key, value = (jax.random.normal(k, (ROWS, seq, 2, 8)) for k in keys[1:3])
    cached = [jax.random.normal(k, (ROWS, PAST, 2, 8)) for k in keys[3:]]
    length = jnp.asarray([0, 9, PAST - 1], jnp.int32)
    steps = jnp.arange(seq)
    reach = PAST + seq if window is None else window
    distance = (length[:, None] + steps[None, :])[:, :, None] - jnp.arange(PAST)[None, None]
    past = Past(
        cached[0],
        cached[1],
        visible=(jnp.arange(PAST)[None] < length[:, None])[:, None] & (distance < reach),
        length=length,
        window=window,
    )
    own = steps[:, None] - steps[None, :]
    arguments = (query, key, value, past, (own >= 0) & (own < reach))
    expected = jax.jit(_attend)(*arguments)
    with compile_for(INTERPRETER):
        found = jax.jit(_attend_by_kernel)(*arguments)
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("portions", "width"), [(ONE_BY_ONE, 1), (UNEVEN, 7)])
def test_any_portions_by_the_kernels_give_the_full_forward(
    portions: list[tuple[int, int]], width: int
) -> None:
    states, expected = our_forward(CASE_BY_NAME["sliding"])
    with compile_for(INTERPRETER):
        logits, routes = in_portions("sliding", portions, width, kernels="pallas")
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    np.testing.assert_array_equal(routes, states.routing.expert_index)
