"""The CCA mixing step's kernels equal its definition: q, k, v, the state and every gradient."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_pallas.backend import KernelError
from kernels_pallas.cca import CCAWeights, cca_mix
from kernels_pallas.cca_chunk import CCAState, cca_mix_chunk, fresh_state, next_state
from tests.kernels_pallas.compare import assert_close, interpreted, random, value_and_gradients

TILE = 16  # of the interpreter's table


def inputs(
    batch: int,
    seq: int,
    *,
    kv_heads: int = 2,
    group: int = 2,
    head_dim: int = 8,
    rotary: int = 4,
    widths: tuple[int, int] = (2, 2),
    bias: bool = True,
    dtype=jnp.float32,
):
    """query_key, both value streams, weights, then cos and sin."""
    channels, half = kv_heads * (group + 1) * head_dim, kv_heads * head_dim // 2
    stream, value, angle = (batch, seq, channels), (batch, seq, half), (batch, seq, rotary // 2)
    streams = random(0, stream, value, value, dtype=dtype)
    shapes = ((channels, widths[0]), (channels,), (channels, head_dim, widths[1]), (channels,))
    *taps, temperature, delayed_bias = random(1, *shapes, (kv_heads,), (half,))
    weights = CCAWeights(*taps, temperature, delayed_bias if bias else None)
    (angles,) = random(2, angle)
    return streams, weights, jnp.cos(angles), jnp.sin(angles)


def check(arguments, segment_ids=None, *, state: CCAState | None = None, reduction: int) -> None:
    streams, weights, cos, sin = arguments

    def run(implementation, streams, weights, state):
        options = {"cos": cos, "sin": sin, "segment_ids": segment_ids}
        options["implementation"] = implementation
        if state is None:
            return cca_mix(*streams, weights, **options)
        return cca_mix_chunk(*streams, weights, state, **options)

    xla, pallas = (functools.partial(run, name) for name in ("xla", "pallas"))
    differentiable = (streams, weights, state)
    actual = interpreted(lambda: value_and_gradients(pallas, differentiable))
    expected = value_and_gradients(xla, differentiable)
    assert_close(actual, expected, reduction=reduction, dtype=streams[0].dtype)


def test_packed_segments_of_one_and_two_and_a_row_of_padding() -> None:
    ids = np.zeros((2, 21), np.int32)
    ids[0] = np.repeat([1, 2, 3, 4], [1, 2, TILE - 3, 5])
    check(inputs(2, 21), jnp.asarray(ids), reduction=2 * 21 * 8)


@pytest.mark.parametrize(
    "widths", [(3, 1), pytest.param((3, 4), marks=pytest.mark.slow)], ids=["3-1", "3-4"]
)
def test_unequal_widths_one_kv_head_full_rotary_and_a_state(widths: tuple[int, int]) -> None:
    arguments = inputs(1, 18, kv_heads=1, group=3, rotary=8, widths=widths, bias=False)
    rows, value = random(3, (1, sum(widths) - 2, 32), (1, 4))
    check(arguments, state=CCAState(rows, value), reduction=4 * 18 * 8)


@pytest.mark.slow
def test_bfloat16_streams_with_float32_weights() -> None:
    # Both round at the same places but dy, which the kernels pass on in bfloat16.
    check(inputs(1, 9, dtype=jnp.bfloat16), reduction=8)


def test_chunks_equal_the_whole_sequence() -> None:
    (u, current, delayed), weights, cos, sin = inputs(2, 9)

    @jax.jit
    def run(u, current, delayed, cos, sin):
        state = fresh_state(2, weights, u.dtype)
        parts = []
        for a, b in ((0, 1), (1, 3), (3, 9)):
            streams = (u[:, a:b], current[:, a:b], delayed[:, a:b])
            options = {"cos": cos[:, a:b], "sin": sin[:, a:b]}
            parts.append(cca_mix_chunk(*streams, weights, state, **options))
            state = next_state(state, u[:, a:b], delayed[:, a:b])
        whole = cca_mix(u, current, delayed, weights, cos=cos, sin=sin)
        return [jnp.concatenate(p, axis=1) for p in zip(*parts, strict=True)], list(whole), state

    chunked, whole, state = run(u, current, delayed, cos, sin)
    assert_close(chunked, whole, reduction=8)
    np.testing.assert_array_equal(state.query_key, u[:, -2:])
    short = next_state(fresh_state(2, weights, u.dtype), u, delayed, jnp.asarray([1, 9]))
    np.testing.assert_array_equal(short.query_key[0], np.stack([0 * u[0, 0], u[0, 0]]))
    np.testing.assert_array_equal(short.value_delayed[0], delayed[0, 0])


def test_tokens_of_other_segments_are_not_read() -> None:
    streams, weights, cos, sin = inputs(1, 12, bias=False)
    ids = jnp.asarray(np.repeat([1, 2], [5, 7])[None], jnp.int32)
    run = functools.partial(cca_mix, weights=weights, cos=cos, sin=sin, segment_ids=ids)
    poisoned = [a.at[:, :5].set(jnp.nan) for a in streams]
    pallas = jax.jit(functools.partial(run, implementation="pallas"))
    actual = interpreted(lambda: pallas(*poisoned))
    expected = jax.jit(functools.partial(run, implementation="xla"))(*streams)
    assert_close([a[:, 5:] for a in actual], [a[:, 5:] for a in expected], reduction=16)


@pytest.mark.slow
@settings(deadline=None, max_examples=12)
@given(st.data())
def test_any_geometry(data: st.DataObject) -> None:
    seq = data.draw(st.integers(1, TILE + 3))
    head_dim = data.draw(st.sampled_from([4, 8, 12]))
    arguments = inputs(
        1,
        seq,
        kv_heads=data.draw(st.integers(1, 3)),
        group=data.draw(st.integers(1, 3)),
        head_dim=head_dim,
        rotary=data.draw(st.sampled_from([2, 4])),
        widths=(data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))),
        bias=data.draw(st.booleans()),
    )
    cuts = sorted(data.draw(st.sets(st.integers(1, seq), max_size=4)) | {0, seq})
    ids = jnp.asarray(np.repeat(np.arange(len(cuts) - 1), np.diff(cuts))[None], jnp.int32)
    check(arguments, ids, reduction=4 * head_dim * seq)


def test_refusals_name_the_reason() -> None:
    streams, weights, cos, sin = inputs(1, 3)
    run = functools.partial(cca_mix, weights=weights, cos=cos, sin=sin, implementation="pallas")
    with pytest.raises(KernelError, match=r"cca_mix: .* needs a GPU"):
        run(*streams)
    wrong = [streams[0], streams[1].astype(jnp.bfloat16), streams[2]]
    with pytest.raises(KernelError, match="dtypes float32, bfloat16, float32 are not all"):
        interpreted(lambda: run(*wrong))
