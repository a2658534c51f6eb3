"""What is not finite reaches nothing that does not use it, in both forms."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from kernels_pallas.attention import causal_attention
from kernels_pallas.attention_decode import attention_decode
from kernels_pallas.cca import cca_mix
from kernels_pallas.cross_entropy import linear_cross_entropy
from kernels_pallas.expert_mlp import expert_mlp
from kernels_pallas.flash_attention import flash_attention
from kernels_pallas.head_statistics import token_log_probabilities
from tests.kernels_pallas.compare import interpreted, value_and_gradients
from tests.kernels_pallas.operations import (
    FORMS,
    assert_agree,
    bare,
    drawn,
    expert_arguments,
    head_arguments,
    in_form,
    mix_arguments,
)

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
    x, _, gate, gate_up, down = expert_arguments(5, np.float32)
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
def test_states_of_tokens_that_do_not_count_may_hold_anything(form: str) -> None:
    hidden, weight, bias, targets = head_arguments(4, np.float32)
    counts = np.asarray([1.0, 0.0, 0.5, 0.0], np.float32)
    run = functools.partial(bare(linear_cross_entropy), z_loss_weight=0.1)
    clean = in_form(form, run, [hidden, weight, bias, targets, counts])
    hidden[counts == 0] = np.nan
    assert_agree(in_form(form, run, [hidden, weight, bias, targets, counts]), clean)


def test_log_probabilities_of_a_state_that_is_not_finite_are_its_own_alone() -> None:
    arguments = head_arguments(3, np.float32)
    arguments[0][1] = np.inf
    xla, pallas = (in_form(form, bare(token_log_probabilities), arguments) for form in FORMS)
    np.testing.assert_array_equal(np.isnan(pallas[0]), [False, True, False])
    assert all(np.isfinite(g).all() for g in pallas[1])
    assert_agree(pallas, xla)


def test_entries_ruled_out_by_the_bias_are_minus_infinity() -> None:
    arguments = head_arguments(3, np.float32)
    arguments[2][1] = -np.inf  # the second token's target
    xla, pallas = (in_form(form, bare(token_log_probabilities), arguments) for form in FORMS)
    np.testing.assert_array_equal(np.isneginf(pallas[0]), [False, True, False])
    assert_agree(pallas, xla)


@pytest.mark.slow
def test_segments_of_the_mixing_step_do_not_meet_in_either_form() -> None:
    *streams, weights, cos, sin = mix_arguments(1, 9, np.float32)
    run = functools.partial(bare(cca_mix), segment_ids=SEGMENTS, cos=cos, sin=sin)
    used = np.flatnonzero(SEGMENTS[0] != 2)
    dirty = [np.where((SEGMENTS == 2)[:, :, None], np.nan, a) for a in streams]
    for form in FORMS:
        mix = functools.partial(run, weights=weights)
        (clean, gradients), (found, reached) = (in_form(form, mix, a) for a in (streams, dirty))
        for a, b in zip((*found, *reached), (*clean, *gradients), strict=True):
            np.testing.assert_allclose(np.asarray(a)[:, used], np.asarray(b)[:, used], atol=1e-4)
