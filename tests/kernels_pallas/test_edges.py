"""Nothing at all, NumPy's arrays, numbers out of range and what is not finite, in both forms."""

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
from kernels_pallas.cca_chunk import CCAState, cca_mix_chunk, next_state
from kernels_pallas.cross_entropy import linear_cross_entropy
from kernels_pallas.expert_mlp import expert_mlp
from kernels_pallas.flash_attention import flash_attention
from kernels_pallas.head_statistics import token_log_probabilities
from kernels_pallas.newton_schulz import newton_schulz
from kernels_pallas.norm import scaled_residual_norm
from tests.kernels_pallas.compare import interpreted, value_and_gradients

FORMS = ("xla", "pallas")
NAN = jnp.nan


def drawn(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def _weights(dtype: Any) -> CCAWeights:
    shapes = ((16, 2), (16,), (16, 8, 2), (16,), (1,), (4,))
    return CCAWeights(*(drawn(*shape, dtype=dtype) for shape in shapes))


def _mix(batch: int, seq: int, dtype: Any) -> list[Any]:
    streams = [drawn(batch, seq, width, dtype=dtype) for width in (16, 4, 4)]
    return [*streams, _weights(dtype), *(drawn(batch, seq, 2, dtype=dtype) for _ in range(2))]


def _attention(batch: int, queries: int, dtype: Any) -> list[Any]:
    kv = (batch, queries + 1, 1, 8)
    return [drawn(*shape, dtype=dtype) for shape in ((batch, queries, 2, 8), kv, kv)]


def _head(tokens: int, dtype: Any) -> list[Any]:
    floats = [drawn(*shape, dtype=dtype) for shape in ((tokens, 6), (9, 6), (9,))]
    return [*floats, np.arange(tokens, dtype=np.int32)]


def _mix_of(function: Callable[..., Any], *arguments: Any, implementation: str) -> Any:
    *rest, cos, sin = arguments
    return function(*rest, cos=cos, sin=sin, implementation=implementation)


def _norm(*arguments: Any, implementation: str) -> Any:
    names = ("hidden_bias", "hidden_scale", "residual_bias", "residual_scale", "norm_weight")
    vectors = dict(zip(names, arguments[2:], strict=True))
    return bare(scaled_residual_norm)(
        *arguments[:2], **vectors, epsilon=1e-5, implementation=implementation
    )


def _experts(tokens: int, dtype: Any) -> list[Any]:
    shapes = ((tokens, 4), (tokens,), (3, 4, 4), (3, 4, 2))
    x, *rest = [drawn(*shape, dtype=dtype) for shape in shapes]
    return [x, np.arange(tokens, dtype=np.int32) % 4, *rest]


def bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """Without the annotation checks of tests: NumPy's arrays are no `jax.Array`."""
    return getattr(function, "__wrapped__", function)


def _chunk(batch: int, seq: int, dtype: Any) -> list[Any]:
    *streams, weights, cos, sin = _mix(batch, seq, dtype)
    state = CCAState(drawn(batch, 2, 16, dtype=dtype), drawn(batch, 4, dtype=dtype))
    return [*streams, weights, state, cos, sin]


# By name: the operation, and its arguments for a number of tokens and a dtype.
OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[[int, Any], list[Any]]]] = {
    "causal": (bare(causal_attention), functools.partial(_attention, 1)),
    "flash": (bare(flash_attention), functools.partial(_attention, 1)),
    "cca": (functools.partial(_mix_of, bare(cca_mix)), functools.partial(_mix, 1)),
    "chunk": (functools.partial(_mix_of, bare(cca_mix_chunk)), functools.partial(_chunk, 1)),
    "cross entropy": (bare(linear_cross_entropy), lambda t, d: [*_head(t, d), drawn(t, dtype=d)]),
    "log probabilities": (bare(token_log_probabilities), _head),
    "experts": (functools.partial(bare(expert_mlp), dispatch="grouped"), _experts),
    "norm": (_norm, lambda t, d: [drawn(t, 8, dtype=d)] * 2 + [drawn(8, dtype=d)] * 5),
}


def in_form(form: str, function: Callable[..., Any], arguments: list[Any]) -> Any:
    run = functools.partial(function, implementation=form)
    return interpreted(lambda: value_and_gradients(run, arguments))


def assert_agree(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """The same numbers in the same dtypes, NaN where there is NaN."""
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    for a, b in pairs:
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_tokens_give_empty_results_and_zero_gradients(name: str) -> None:
    function, make = OPERATIONS[name]
    xla, pallas = (in_form(form, function, make(0, np.float32)) for form in FORMS)
    assert_agree(pallas, xla)
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(pallas[1]))


def test_nothing_to_decode_and_no_matrices_are_empty() -> None:
    for batch, queries in ((0, 1), (2, 0)):
        arguments = _attention(batch, queries, np.float32)
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
    *streams, weights, cos, sin = _mix(1, 3, np.float32)
    arguments = [*streams, weights, cos[..., :0], sin[..., :0]]
    run = functools.partial(_mix_of, bare(cca_mix), *arguments)
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
    ("window = 0: must be at least 1", lambda **o: FLASH(*_attention(1, 2, "f4"), window=0, **o)),
    (
        "window = -3: must be at least 1",
        lambda **o: bare(causal_attention)(*_attention(1, 2, "f4"), window=-3, **o),
    ),
    (
        "window = 0: must be at least 1",
        lambda **o: DECODE(*_attention(1, 1, "f4"), LENGTHS, window=np.int32(0), **o),
    ),
    (
        "query_offset = 2: must be in 0..1",
        lambda **o: FLASH(*_attention(1, 2, "f4"), query_offset=2, **o),
    ),
    (
        "query_offset holds -1: must be in 0..1",
        lambda **o: FLASH(*_attention(1, 2, "f4"), query_offset=-LENGTHS, **o),
    ),
    (
        "lengths holds 3: must be in 0..2",
        lambda **o: DECODE(*_attention(1, 1, "f4"), 3 * LENGTHS, **o),
    ),
    (
        "lengths holds -1: must be in 0..2",
        lambda **o: DECODE(*_attention(1, 1, "f4"), jnp.asarray(-LENGTHS), **o),
    ),
    (
        "targets holds 9: must be in 0..8",
        lambda **o: bare(token_log_probabilities)(*_head(10, "f4"), **o),
    ),
    (
        "targets holds 9: must be in 0..8",
        lambda **o: bare(linear_cross_entropy)(*_head(10, "f4"), np.ones(10, "f4"), **o),
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
            *_mix(1, 2, "f4")[:3],
            _weights("f4")._replace(depthwise=drawn(16, 5)),
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
    hidden, weight, bias, _ = _head(2, np.float32)
    run = functools.partial(bare(linear_cross_entropy), hidden, weight, bias)
    ids, counts = np.asarray([-100, 3]), np.asarray([0.0, 1.0], np.float32)
    assert np.isfinite(run(ids, counts).loss_sum)
    with pytest.raises(KernelError, match="targets holds -100"):
        run(ids, counts[::-1])


@pytest.mark.parametrize("form", FORMS)
def test_traced_numbers_out_of_range_count_as_the_nearest(form: str) -> None:
    query, key, value = _attention(2, 1, np.float32)

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


SEGMENTS = np.repeat([[1, 2, 3]], [3, 2, 4], axis=1).astype(np.int32)


@pytest.mark.parametrize("function", [causal_attention, flash_attention])
def test_attention_keeps_what_is_not_finite_to_those_who_see_it(
    function: Callable[..., Any],
) -> None:
    """Of three segments the middle one is not finite, in keys, values, queries or cotangents."""
    query, key, value = (drawn(1, 9, heads, 8) for heads in (2, 1, 1))
    spoiled = [np.where((SEGMENTS == 2)[:, :, None, None], bad, a) for a, bad in
               ((query, np.nan), (key, np.inf), (value, -np.inf))]  # fmt: skip
    results = []
    for form in FORMS:
        run = functools.partial(bare(function), segment_ids=SEGMENTS, implementation=form)
        clean, dirty = (in_form(form, run, a) for a in ([query, key, value], spoiled))
        used = np.flatnonzero(SEGMENTS[0] != 2)
        out, expected = (jax.tree.leaves(found[0])[0] for found in (dirty, clean))
        for a, b in zip((out, *dirty[1]), (expected, *clean[1]), strict=True):
            np.testing.assert_allclose(a[:, used], b[:, used], atol=1e-5)
        assert np.isnan(out[:, SEGMENTS[0] == 2]).all()
        assert all((np.asarray(d)[:, SEGMENTS[0] == 2] == 0).all() for d in dirty[1])
        results.append(dirty)
    assert_agree(*results)


def test_later_tokens_that_are_not_finite_do_not_reach_earlier_ones() -> None:
    query, key, value = (drawn(1, 5, heads, 8) for heads in (2, 1, 1))
    key[:, 3] = np.nan
    for form in FORMS:
        run = functools.partial(bare(causal_attention), query, key, value, implementation=form)
        found = np.asarray(interpreted(run))
        assert np.isfinite(found[:, :3]).all()
        assert np.isnan(found[:, 3:]).all()


def test_decoding_does_not_read_before_the_window() -> None:
    query, key, value = (drawn(1, n, 1, 8) for n in (2, 9, 9))
    run = functools.partial(bare(attention_decode), lengths=np.asarray([7], np.int32), window=3)
    clean = interpreted(lambda: run(query, key, value, implementation="xla"))
    key[:, [0, 2, 7, 8]] = value[:, [0, 2, 7, 8]] = np.nan  # places 3..6 are seen
    for form in FORMS:
        found = interpreted(lambda form=form: run(query, key, value, implementation=form))
        np.testing.assert_allclose(found, clean, atol=1e-6)


@pytest.mark.parametrize("form", [*FORMS, "bucketed", "ragged_dot", "dense"])
def test_skipped_tokens_may_hold_anything(form: str) -> None:
    x, _, gate, gate_up, down = _experts(5, np.float32)
    classes = np.asarray([0, 3, 2, 3, 0], np.int32)
    options = {"dispatch": "grouped", "implementation": form}
    if form == "dense":
        options = {"dispatch": "dense", "implementation": "xla"}

    def run(*floats: Any) -> Any:
        x, gate, *weights = floats
        return bare(expert_mlp)(x, classes, gate, *weights, **options)

    clean = interpreted(lambda: value_and_gradients(run, [x, gate, gate_up, down]))
    x[classes == 3], gate[classes == 3] = np.nan, np.inf
    dirty = interpreted(lambda: value_and_gradients(run, [x, gate, gate_up, down]))
    assert_agree(dirty, clean)
    assert all((np.asarray(a)[classes == 3] == 0).all() for a in (dirty[0], *dirty[1][:2]))


@pytest.mark.parametrize("form", FORMS)
def test_traced_classes_out_of_range_are_skipped(form: str) -> None:
    x, _, *rest = _experts(3, np.float32)
    run = jax.jit(functools.partial(EXPERTS, dispatch="grouped", implementation=form))
    found = interpreted(lambda: run(x, jnp.asarray([-1, 1, 7]), *rest))
    assert (np.asarray(found)[[0, 2]] == 0).all()
    assert (np.asarray(found)[1] != 0).any()


@pytest.mark.parametrize("form", FORMS)
def test_states_of_tokens_that_do_not_count_may_hold_anything(form: str) -> None:
    hidden, weight, bias, targets = _head(4, np.float32)
    counts = np.asarray([1.0, 0.0, 0.5, 0.0], np.float32)
    run = functools.partial(bare(linear_cross_entropy), z_loss_weight=0.1)
    clean = in_form(form, run, [hidden, weight, bias, targets, counts])
    hidden[counts == 0] = np.nan
    assert_agree(in_form(form, run, [hidden, weight, bias, targets, counts]), clean)


def test_log_probabilities_of_a_state_that_is_not_finite_are_its_own_alone() -> None:
    arguments = _head(3, np.float32)
    arguments[0][1] = np.inf
    xla, pallas = (in_form(form, bare(token_log_probabilities), arguments) for form in FORMS)
    np.testing.assert_array_equal(np.isnan(pallas[0]), [False, True, False])
    assert all(np.isfinite(g).all() for g in pallas[1])
    assert_agree(pallas, xla)


def test_entries_ruled_out_by_the_bias_are_minus_infinity() -> None:
    arguments = _head(3, np.float32)
    arguments[2][1] = -np.inf  # the second token's target
    xla, pallas = (in_form(form, bare(token_log_probabilities), arguments) for form in FORMS)
    np.testing.assert_array_equal(np.isneginf(pallas[0]), [False, True, False])
    assert_agree(pallas, xla)


def test_segments_of_the_mixing_step_do_not_meet_in_either_form() -> None:
    *streams, weights, cos, sin = _mix(1, 9, np.float32)
    run = functools.partial(bare(cca_mix), segment_ids=SEGMENTS, cos=cos, sin=sin)
    used = np.flatnonzero(SEGMENTS[0] != 2)
    dirty = [np.where((SEGMENTS == 2)[:, :, None], np.nan, a) for a in streams]
    for form in FORMS:
        mix = functools.partial(run, weights=weights)
        (clean, gradients), (found, reached) = (in_form(form, mix, a) for a in (streams, dirty))
        for a, b in zip((*found, *reached), (*clean, *gradients), strict=True):
            np.testing.assert_allclose(np.asarray(a)[:, used], np.asarray(b)[:, used], atol=1e-4)


def test_states_end_at_a_length_in_range() -> None:
    state = CCAState(jnp.ones((1, 2, 16)), jnp.ones((1, 4)))
    streams = drawn(1, 3, 16), drawn(1, 3, 4)
    with pytest.raises(KernelError, match=r"next_state: lengths holds 4: must be in 0\.\.3"):
        bare(next_state)(state, *streams, np.asarray([4]))
    with pytest.raises(KernelError, match=r"value_delayed is \(1, 2, 4\), must be \(1, 3, 4\)"):
        bare(next_state)(state, streams[0], drawn(1, 2, 4))
    far = jax.jit(bare(next_state))(state, *streams, jnp.asarray([9]))
    assert_agree(far, bare(next_state)(state, *streams))
