"""Nothing at all, NumPy's arrays, and numbers out of range: alike in both forms."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels_pallas.attention import causal_attention
from kernels_pallas.attention_decode import attention_decode
from kernels_pallas.backend import KernelError
from kernels_pallas.cca import CCAWeights, cca_mix
from kernels_pallas.cca_chunk import CCAState, next_state
from kernels_pallas.cross_entropy import linear_cross_entropy
from kernels_pallas.expert_mlp import expert_mlp
from kernels_pallas.flash_attention import flash_attention
from kernels_pallas.head_statistics import token_log_probabilities
from kernels_pallas.newton_schulz import newton_schulz
from tests.kernels_pallas.compare import interpreted, value_and_gradients
from tests.kernels_pallas.operations import (
    FORMS,
    OPERATIONS,
    assert_agree,
    attention_arguments,
    bare,
    drawn,
    expert_arguments,
    head_arguments,
    in_form,
    mix_arguments,
    mix_of,
    mix_weights,
)


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_tokens_give_empty_results_and_zero_gradients(name: str) -> None:
    function, make = OPERATIONS[name]
    xla, pallas = (in_form(form, function, make(0, np.float32)) for form in FORMS)
    assert_agree(pallas, xla)
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(pallas[1]))


def test_nothing_to_decode_and_no_matrices_are_empty() -> None:
    for batch, queries in ((0, 1), (2, 0)):
        arguments = attention_arguments(batch, queries, np.float32)
        if batch:
            arguments[1:] = [np.zeros((2, 0, 1, 8), np.float32)] * 2  # no cache either
        lengths = np.zeros(batch, np.int32)
        run = functools.partial(bare(attention_decode), *arguments, lengths)
        for form in FORMS:
            found = interpreted(functools.partial(run, implementation=form))
            assert found.shape == (batch, queries, 2, 8)
    for shape in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
        for form in FORMS:
            run = functools.partial(bare(newton_schulz), np.zeros(shape), implementation=form)
            assert interpreted(run).shape == shape


def test_no_rotary_channels_turn_nothing() -> None:
    *streams, weights, cos, sin = mix_arguments(1, 3, np.float32)
    arguments = [*streams, weights, cos[..., :0], sin[..., :0]]
    run = functools.partial(mix_of, bare(cca_mix), *arguments)
    xla, pallas = (
        interpreted(jax.jit(functools.partial(run, implementation=form))) for form in FORMS
    )
    assert_agree(pallas, xla)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_have_the_dtypes_of_their_arguments(name: str, form: str) -> None:
    """Also those of parameters in bfloat16; traced only, on NumPy's arrays."""
    function, make = OPERATIONS[name]
    arguments = jax.tree.map(jnp.asarray, make(3, jnp.bfloat16))
    floating = [a for a in arguments if jnp.issubdtype(jax.tree.leaves(a)[0].dtype, jnp.floating)]
    run = functools.partial(value_and_gradients, functools.partial(function, implementation=form))
    _, gradients = interpreted(lambda: jax.eval_shape(run, arguments))
    for gradient, argument in zip(
        jax.tree.leaves(gradients), jax.tree.leaves(floating), strict=True
    ):
        assert (gradient.shape, gradient.dtype) == (argument.shape, argument.dtype)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_numpy_arrays_are_taken_like_jax_s(name: str, form: str) -> None:
    function, make = OPERATIONS[name]
    run = functools.partial(function, *make(3, np.float32), implementation=form)
    interpreted(lambda: jax.eval_shape(run))


FLASH, DECODE, EXPERTS = (
    bare(f) for f in (flash_attention, attention_decode, functools.partial(expert_mlp).func)
)
LENGTHS = np.asarray([1], np.int32)
OUT_OF_RANGE = [
    (
        "window = 0: must be at least 1",
        lambda **o: FLASH(*attention_arguments(1, 2, "f4"), window=0, **o),
    ),
    (
        "window = -3: must be at least 1",
        lambda **o: bare(causal_attention)(*attention_arguments(1, 2, "f4"), window=-3, **o),
    ),
    (
        "window = 0: must be at least 1",
        lambda **o: DECODE(*attention_arguments(1, 1, "f4"), LENGTHS, window=np.int32(0), **o),
    ),
    (
        "query_offset = 2: must be in 0..1",
        lambda **o: FLASH(*attention_arguments(1, 2, "f4"), query_offset=2, **o),
    ),
    (
        "query_offset holds -1: must be in 0..1",
        lambda **o: FLASH(*attention_arguments(1, 2, "f4"), query_offset=-LENGTHS, **o),
    ),
    (
        "lengths holds 3: must be in 0..2",
        lambda **o: DECODE(*attention_arguments(1, 1, "f4"), 3 * LENGTHS, **o),
    ),
    (
        "lengths holds -1: must be in 0..2",
        lambda **o: DECODE(*attention_arguments(1, 1, "f4"), jnp.asarray(-LENGTHS), **o),
    ),
    (
        "targets holds 9: must be in 0..8",
        lambda **o: bare(token_log_probabilities)(*head_arguments(10, "f4"), **o),
    ),
    (
        "targets holds 9: must be in 0..8",
        lambda **o: bare(linear_cross_entropy)(*head_arguments(10, "f4"), np.ones(10, "f4"), **o),
    ),
    (
        "class_index holds 4: must be in 0..3",
        lambda **o: EXPERTS(
            drawn(1, 4), 4 * LENGTHS, drawn(1), drawn(3, 4, 4), drawn(3, 4, 2), dispatch="grouped"
        ),
    ),
    (
        "steps = -1: must be at least 0",
        lambda **o: bare(newton_schulz)(drawn(1, 2, 2), steps=-1, **o),
    ),
    (
        "head_dim = 257 is more than 256",
        lambda **o: FLASH(*[drawn(1, 1, 1, 257)] * 3, implementation="pallas"),
    ),
    (
        "taps = (5, 2) are more than 4",
        lambda **o: bare(cca_mix)(
            *mix_arguments(1, 2, "f4")[:3],
            mix_weights("f4")._replace(depthwise=drawn(16, 5)),
            cos=drawn(1, 2, 2),
            sin=drawn(1, 2, 2),
            implementation="pallas",
        ),
    ),
    (
        "1 key heads of 7 channels are an odd number of value channels",
        lambda **o: bare(cca_mix)(
            drawn(1, 2, 14),
            *[drawn(1, 2, 3)] * 2,
            CCAWeights(drawn(14, 2), drawn(14), drawn(14, 7, 2), drawn(14), drawn(1), None),
            cos=drawn(1, 2, 2),
            sin=drawn(1, 2, 2),
            **o,
        ),
    ),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("message", "call"), OUT_OF_RANGE)
def test_known_numbers_out_of_range_are_refused(
    message: str, call: Callable[..., Any], form: str
) -> None:
    with pytest.raises(KernelError) as refused:
        interpreted(functools.partial(call, implementation=form))
    assert message in str(refused.value)


def test_ids_of_tokens_that_do_not_count_are_not_looked_at() -> None:
    hidden, weight, bias, _ = head_arguments(2, np.float32)
    run = functools.partial(bare(linear_cross_entropy), hidden, weight, bias)
    ids, counts = np.asarray([-100, 3]), np.asarray([0.0, 1.0], np.float32)
    assert np.isfinite(run(ids, counts).loss_sum)
    with pytest.raises(KernelError, match="targets holds -100"):
        run(ids, counts[::-1])


@pytest.mark.parametrize("form", FORMS)
def test_traced_numbers_out_of_range_count_as_the_nearest(form: str) -> None:
    query, key, value = attention_arguments(2, 1, np.float32)

    @jax.jit
    def run(lengths: jax.Array, window: jax.Array, offset: jax.Array) -> Any:
        options = {"window": window, "implementation": form}
        decoded = DECODE(query, key, value, lengths, **options)
        return decoded, FLASH(query, key, value, query_offset=offset, **options)

    far, near = (
        interpreted(lambda limits=limits: run(*map(jnp.asarray, limits)))
        for limits in (([5, -2], -1, 7), ([2, 0], 1, 1))
    )
    assert_agree(far, near)
    assert (np.asarray(far[0][1]) == 0).all()  # nothing counts in that row


@pytest.mark.parametrize("form", FORMS)
def test_traced_classes_out_of_range_are_skipped(form: str) -> None:
    x, _, *rest = expert_arguments(3, np.float32)
    run = jax.jit(functools.partial(EXPERTS, dispatch="grouped", implementation=form))
    found = interpreted(lambda: run(x, jnp.asarray([-1, 1, 7]), *rest))
    assert (np.asarray(found)[[0, 2]] == 0).all()
    assert (np.asarray(found)[1] != 0).any()


def test_states_end_at_a_length_in_range() -> None:
    state = CCAState(jnp.ones((1, 2, 16)), jnp.ones((1, 4)))
    streams = drawn(1, 3, 16), drawn(1, 3, 4)
    with pytest.raises(KernelError, match=r"next_state: lengths holds 4: must be in 0\.\.3"):
        bare(next_state)(state, *streams, np.asarray([4]))
    with pytest.raises(KernelError, match=r"value_delayed is \(1, 2, 4\), must be \(1, 3, 4\)"):
        bare(next_state)(state, streams[0], drawn(1, 2, 4))
    far = jax.jit(bare(next_state))(state, *streams, jnp.asarray([9]))
    assert_agree(far, bare(next_state)(state, *streams))
