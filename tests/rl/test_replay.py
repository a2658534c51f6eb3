"""Router replay in the trainer's forward pass."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.rl.tiny_policy import MODEL, SKIP, packed_batch, variables
from zaya_jax.config import RematPolicy
from zaya_jax.model.transformer import Transformer
from zaya_jax.rl.errors import RLError
from zaya_jax.rl.log_probs import policy_forward
from zaya_jax.rl.replay import ROUTE_LIVE, flip_counts, place_routes

LENGTHS, SEQ = [[5, 9], [12]], 16


@functools.cache
def forward(remat: RematPolicy = RematPolicy.NONE) -> Any:
    model = Transformer(MODEL.replace(remat=remat))

    def run(params: Any, biases: Any, batch: Any) -> Any:
        return policy_forward(model, params, {"biases": biases}, batch)

    return jax.jit(run)


def run(batch: dict, biases: Any = None, seed: int = 0) -> Any:
    made = variables(seed)
    return forward()(
        made["params"], made["balancing"]["biases"] if biases is None else biases, batch
    )


@functools.cache
def recorded() -> np.ndarray:
    """Routes of the live pass, padding excluded."""
    batch = packed_batch(LENGTHS, SEQ)
    routes = np.array(run(batch).routing.expert_index)
    return np.where(batch["segment_ids"][None] > 0, routes, ROUTE_LIVE)


def with_routes(routes: np.ndarray) -> dict[str, np.ndarray]:
    return {**packed_batch(LENGTHS, SEQ), "routes": routes}


def test_the_tiny_model_uses_several_classes_and_skips() -> None:
    assert len(np.unique(recorded()[recorded() >= 0])) >= 4
    assert np.any(recorded() == SKIP)


def test_replaying_the_own_choices_changes_no_bit() -> None:
    live = run({**packed_batch(LENGTHS, SEQ), "routes": np.full((2, 2, SEQ), ROUTE_LIVE, np.int32)})
    replayed = run(with_routes(recorded()))
    np.testing.assert_array_equal(replayed.log_probs, live.log_probs)
    without = run(packed_batch(LENGTHS, SEQ))
    np.testing.assert_allclose(without.log_probs, live.log_probs, atol=1e-5)


def test_biases_play_no_role_under_replay() -> None:
    base = run(with_routes(recorded()))
    biases = jnp.asarray(np.random.default_rng(1).normal(size=(2, SKIP + 1)), jnp.float32)
    moved = run(with_routes(recorded()), biases)
    real = packed_batch(LENGTHS, SEQ)["segment_ids"] > 0
    np.testing.assert_array_equal(
        np.asarray(moved.log_probs)[real], np.asarray(base.log_probs)[real]
    )
    assert np.any(np.asarray(run(packed_batch(LENGTHS, SEQ), biases).log_probs) != base.log_probs)


def test_a_flipped_choice_changes_its_token_and_later_ones_of_its_sequence_only() -> None:
    base = np.asarray(run(with_routes(recorded())).log_probs)
    routes = recorded().copy()
    routes[0, 0, 8] = (routes[0, 0, 8] + 1) % SKIP  # second sequence of the first row, 4th token
    changed = np.asarray(run(with_routes(routes)).log_probs) != base
    assert changed[0, 8]
    assert not changed[0, :8].any()
    assert not changed[1].any()


def test_a_replayed_skip_is_the_expert_block_left_out() -> None:
    # With the same gates, only a zero output can make expert weights irrelevant.
    routes = np.full((2, 2, SEQ), SKIP, np.int32)
    made = variables()
    params = jax.tree.map(lambda x: x, made["params"])
    base = forward()(params, made["balancing"]["biases"], with_routes(routes)).log_probs
    experts = jax.tree.map(lambda x: x + 1.0, params["layers"]["experts"])
    params = {**params, "layers": {**params["layers"], "experts": experts}}
    other = forward()(params, made["balancing"]["biases"], with_routes(routes)).log_probs
    np.testing.assert_array_equal(base, other)


@functools.cache
def gradient(remat: RematPolicy) -> Any:
    def loss(params: Any, biases: Any, batch: Any) -> Any:
        return jnp.sum(forward(remat)(params, biases, batch).log_probs)

    return jax.jit(jax.grad(loss))


def gradient_of(routes: np.ndarray, remat: RematPolicy = RematPolicy.NONE) -> Any:
    made = variables()
    return gradient(remat)(made["params"], made["balancing"]["biases"], with_routes(routes))


def test_the_router_learns_under_replay_and_not_from_skipped_tokens() -> None:
    router = gradient_of(recorded())["layers"]["router"]
    assert float(jnp.abs(router["out"]["weight"]).max()) > 1e-3
    skipped = gradient_of(np.full((2, 2, SEQ), SKIP, np.int32))["layers"]["router"]
    assert float(jnp.abs(skipped["out"]["weight"]).max()) == 0.0


@pytest.mark.slow
def test_recomputation_in_the_backward_pass_sees_the_same_choices() -> None:
    # Choices the router would not make: a recomputation that routes live gives other gradients.
    routes = np.where(recorded() >= 0, (recorded() + 1) % SKIP, ROUTE_LIVE)
    plain, remat = gradient_of(routes), gradient_of(routes, RematPolicy.FULL)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(remat), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4)


def test_packing_takes_the_routes_along() -> None:
    packed = run(with_routes(recorded()))
    batch = with_routes(recorded())
    apart = {name: np.zeros((3, SEQ), np.int32) for name in batch if name != "routes"}
    apart["routes"] = np.full((2, 3, SEQ), ROUTE_LIVE, np.int32)
    pieces = [(0, slice(0, 5)), (0, slice(5, 14)), (1, slice(0, 12))]
    for row, (source, part) in enumerate(pieces):
        length = part.stop - part.start
        for name in ("tokens", "targets", "positions"):
            apart[name][row, :length] = batch[name][source, part]
        apart["segment_ids"][row, :length] = 1
        apart["routes"][:, row, :length] = batch["routes"][:, source, part]
    alone = run(apart)
    for row, (source, part) in enumerate(pieces):
        length = part.stop - part.start
        np.testing.assert_allclose(
            alone.log_probs[row, :length], packed.log_probs[source, part], atol=2e-5
        )


def test_flips_are_counted_over_replayed_tokens() -> None:
    biases = variables()["balancing"]["biases"]
    routes = recorded().copy()
    routes[1, 1, 3] = (routes[1, 1, 3] + 1) % SKIP
    counts = flip_counts(run(with_routes(recorded())).routing, biases, jnp.asarray(recorded()))
    assert counts.flipped.tolist() == [0, 0]
    assert counts.replayed.tolist() == [26, 26]
    counts = flip_counts(run(with_routes(routes)).routing, biases, jnp.asarray(routes))
    assert counts.flipped.tolist() == [0, 1]


def test_recorded_rows_are_placed_and_the_last_may_be_missing() -> None:
    rows = np.array([[0, 4], [1, 2]], np.uint8)
    placed = place_routes(rows, 3, layers=2, num_experts=4)
    assert placed.tolist() == [[0, 1, ROUTE_LIVE], [4, 2, ROUTE_LIVE]]
    assert place_routes(rows, 2, layers=2, num_experts=4).tolist() == [[0, 1], [4, 2]]


@pytest.mark.parametrize(
    ("rows", "seq", "message"),
    [
        (np.zeros((2, 3), np.uint8), 2, "3 layers: the model has 2"),
        (np.zeros((2, 2), np.uint8), 4, "2 rows of routes for 4 input tokens"),
        (np.zeros((5, 2), np.uint8), 4, "5 rows of routes for 4 input tokens"),
        (np.full((4, 2), 5, np.uint8), 4, "must be raw classes 0..4"),
        (np.full((4, 2), -1, np.int8), 4, "must be raw classes 0..4"),
    ],
)
def test_routes_that_do_not_belong_to_the_sequence_are_refused(
    rows: np.ndarray, seq: int, message: str
) -> None:
    with pytest.raises(RLError, match=message):
        place_routes(rows, seq, layers=2, num_experts=4)


def test_the_model_refuses_routes_of_another_shape_or_unknown_classes() -> None:
    model, tokens = Transformer(MODEL), np.zeros((1, 2), np.int32)
    with pytest.raises(ValueError, match=r"must be \[layers, batch, seq\] = \(2, 1, 2\)"):
        model.apply(variables(), tokens, routes=np.zeros((3, 1, 2), np.int32))
    with pytest.raises(ValueError, match=r"route 5: router classes are 0\.\.4"):
        model.apply(variables(), tokens, routes=np.full((2, 1, 2), 5, np.int32))
