"""The model equals the public PyTorch implementation, number by number, in float32.

Live against transformers where the `parity` extra is installed; otherwise against golden files
that it made. Tolerances are float32 rounding: the measured differences are ten times smaller.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest

from tests.parity import reference
from tests.parity.cases import CASE_BY_NAME, CASES
from tests.parity.ours import our_forward, our_loss_and_gradients
from tests.parity.reference import ReferenceRun, sketch, sketch_distance
from zaya_jax.model.outputs import HiddenStates

FORWARD_TOLERANCE = 2e-5  # largest difference over the largest magnitude
GRADIENT_TOLERANCE = 1e-4  # norm of the difference over the norm

Reference = Callable[[str], ReferenceRun]

every_case = pytest.mark.parametrize("name", [case.name for case in CASES])

# Between them every parameter, both dispatches and every branch of the layers; gradients of the
# other cases take longer to compile than they add.
QUICK_GRADIENTS = {
    *("base", "grouped_dispatch", "heads_6_3", "conv_4_3"),
    *("attention_bias", "untied_head_bias", "sliding"),
}


@functools.cache
def ours(name: str) -> tuple[HiddenStates, np.ndarray]:
    return our_forward(CASE_BY_NAME[name])


@functools.cache
def run_reference(name: str, use_golden: bool) -> ReferenceRun:
    case = CASE_BY_NAME[name]
    return reference.golden_run(case) if use_golden else reference.live_run(case)


@pytest.fixture
def theirs(request: pytest.FixtureRequest) -> Callable[[str], ReferenceRun]:
    """Results of the reference by case: computed now where it is installed, else golden ones."""
    use_golden = request.config.getoption("--golden") or not reference.LIVE
    return functools.partial(run_reference, use_golden=use_golden)


def assert_close(actual: np.ndarray, expected: np.ndarray, what: str) -> None:
    assert actual.shape == expected.shape, what
    difference = np.abs(np.asarray(actual) - expected)
    worst = np.unravel_index(np.argmax(difference), difference.shape)
    relative = difference.max() / np.abs(expected).max()
    assert relative <= FORWARD_TOLERANCE, f"{what} differs by {relative:.1e} at {worst}"


@every_case
def test_the_case_reaches_three_experts_and_the_skip_class(name: str, theirs: Reference) -> None:
    experts = CASE_BY_NAME[name].model.num_experts
    layers = [set(np.unique(layer)) for layer in theirs(name).classes]
    assert max(len(classes - {experts}) for classes in layers) >= 3
    assert any(experts in classes for classes in layers)


@every_case
def test_every_layer_routes_and_computes_like_the_reference(name: str, theirs: Reference) -> None:
    (states, _), expected = ours(name), theirs(name)
    routing = states.routing
    for layer in range(len(expected.hidden)):
        assert_close(
            routing.logits[layer], expected.router_logits[layer], f"router logits of layer {layer}"
        )
        np.testing.assert_array_equal(routing.expert_index[layer], expected.classes[layer])
        assert_close(
            states.per_layer[layer], expected.hidden[layer], f"hidden states after {layer}"
        )


@every_case
def test_logits_and_their_first_positions_equal_the_reference(name: str, theirs: Reference) -> None:
    (_, logits), expected = ours(name), theirs(name)
    # The first two positions carry most of what convolutions and delayed values get wrong.
    for position in (0, 1):
        assert_close(
            logits[:, position], expected.logits[:, position], f"logits at position {position}"
        )
    assert_close(logits, expected.logits, "logits")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(case.name, marks=[] if case.name in QUICK_GRADIENTS else pytest.mark.slow)
        for case in CASES
    ],
)
def test_loss_and_every_parameter_gradient_equal_the_reference(
    name: str, theirs: Reference
) -> None:
    loss, gradients = our_loss_and_gradients(CASE_BY_NAME[name])
    assert loss == pytest.approx(theirs(name).loss, rel=FORWARD_TOLERANCE)
    expected = theirs(name).gradient_sketches
    assert set(gradients) == set(expected)
    for tensor, gradient in gradients.items():
        assert expected[tensor][-1] > 0, f"the reference has no gradient for {tensor}"
        distance = sketch_distance(sketch(tensor, gradient), expected[tensor])
        assert distance <= GRADIENT_TOLERANCE, f"gradient of {tensor} differs by {distance:.1e}"


@pytest.mark.skipif(not reference.LIVE, reason="needs torch and transformers: the parity extra")
@pytest.mark.parametrize("name", ["base", "sliding"])
def test_golden_files_hold_what_the_reference_computes_today(name: str) -> None:
    case = CASE_BY_NAME[name]
    golden, live = reference.golden_run(case), reference.live_run(case)
    assert_close(golden.logits, live.logits, "golden logits")
    assert_close(golden.hidden, live.hidden, "golden hidden states")
    np.testing.assert_array_equal(golden.classes, live.classes)
    for tensor, expected in live.gradient_sketches.items():
        assert sketch_distance(golden.gradient_sketches[tensor], expected) <= GRADIENT_TOLERANCE
