"""The model equals the public PyTorch implementation, number by number, in float32.

Live against transformers where the `parity` extra is installed; otherwise against golden files
that it made. Tolerances are float32 rounding: the measured differences are ten times smaller.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.parity import reference
from tests.parity.cases import CASE_BY_NAME, CASES
from tests.parity.ours import OurRun, our_run
from tests.parity.reference import ReferenceRun, sketch, sketch_distance

FORWARD_TOLERANCE = 2e-5  # largest difference over the largest magnitude
GRADIENT_TOLERANCE = 1e-4  # norm of the difference over the norm

every_case = pytest.mark.parametrize("name", [case.name for case in CASES])


@functools.cache
def ours(name: str) -> OurRun:
    return our_run(CASE_BY_NAME[name])


@functools.cache
def theirs(name: str) -> ReferenceRun:
    return reference.reference_run(CASE_BY_NAME[name])


def assert_close(actual: np.ndarray, expected: np.ndarray, what: str) -> None:
    assert actual.shape == expected.shape, what
    difference = np.abs(np.asarray(actual) - expected)
    worst = np.unravel_index(np.argmax(difference), difference.shape)
    relative = difference.max() / np.abs(expected).max()
    assert relative <= FORWARD_TOLERANCE, f"{what} differs by {relative:.1e} at {worst}"


@every_case
def test_the_case_reaches_three_experts_and_the_skip_class(name: str) -> None:
    experts = CASE_BY_NAME[name].model.num_experts
    layers = [set(np.unique(layer)) for layer in theirs(name).classes]
    assert max(len(classes - {experts}) for classes in layers) >= 3
    assert any(experts in classes for classes in layers)


@every_case
def test_every_layer_routes_and_computes_like_the_reference(name: str) -> None:
    run, expected = ours(name), theirs(name)
    routing = run.states.routing
    for layer in range(len(expected.hidden)):
        assert_close(
            routing.logits[layer], expected.router_logits[layer], f"router logits of layer {layer}"
        )
        np.testing.assert_array_equal(routing.expert_index[layer], expected.classes[layer])
        assert_close(
            run.states.per_layer[layer], expected.hidden[layer], f"hidden states after {layer}"
        )


@every_case
def test_logits_and_loss_equal_the_reference(name: str) -> None:
    run, expected = ours(name), theirs(name)
    # The first two positions carry most of what convolutions and delayed values get wrong.
    for position in (0, 1):
        assert_close(
            run.logits[:, position], expected.logits[:, position], f"logits at position {position}"
        )
    assert_close(run.logits, expected.logits, "logits")
    assert abs(run.loss - expected.loss) <= FORWARD_TOLERANCE * abs(expected.loss)


@every_case
def test_every_parameter_gradient_equals_the_reference(name: str) -> None:
    gradients, expected = ours(name).gradients, theirs(name).gradient_sketches
    assert set(gradients) == set(expected)
    for tensor, gradient in gradients.items():
        assert expected[tensor][-1] > 0, f"the reference has no gradient for {tensor}"
        distance = sketch_distance(sketch(tensor, gradient), expected[tensor])
        assert distance <= GRADIENT_TOLERANCE, f"gradient of {tensor} differs by {distance:.1e}"


@pytest.mark.skipif(not reference.LIVE, reason="needs torch and transformers: the parity extra")
@pytest.mark.parametrize("name", ["base", "sliding"])
def test_golden_files_hold_what_the_reference_computes_today(name: str) -> None:
    golden, live = reference.golden_run(CASE_BY_NAME[name]), theirs(name)
    assert_close(golden.logits, live.logits, "golden logits")
    assert_close(golden.hidden, live.hidden, "golden hidden states")
    np.testing.assert_array_equal(golden.classes, live.classes)
    for tensor, expected in live.gradient_sketches.items():
        assert sketch_distance(golden.gradient_sketches[tensor], expected) <= GRADIENT_TOLERANCE
