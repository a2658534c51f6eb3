"""One training step: invariances that a wrong normalisation or a lost gradient would break."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.tiny import RUN, random_batch, with_train
from zaya_jax.model.transformer import Transformer
from zaya_jax.training.settings import RunConfig
from zaya_jax.training.state import (
    TrainState,
    abstract_batch,
    abstract_state,
    init_state,
    seed_key_data,
)
from zaya_jax.training.step import StepMetrics, train_step, validation_step

QUICK_COMPILE = {"xla_backend_optimization_level": "0"}


@pytest.fixture(scope="module")
def state() -> TrainState:
    initialise = jax.jit(lambda key: init_state(RUN, key), compiler_options=QUICK_COMPILE)
    return initialise(seed_key_data(0))


@functools.cache
def _compiled(config: RunConfig, rows: int) -> jax.stages.Compiled:
    step = jax.jit(
        functools.partial(train_step, config), donate_argnums=0, compiler_options=QUICK_COMPILE
    )
    batch = abstract_batch(dataclasses.replace(config.data, batch_size=rows))
    return step.lower(abstract_state(config), batch).compile()


def _step(
    config: RunConfig, state: TrainState, batch: dict[str, np.ndarray]
) -> tuple[TrainState, StepMetrics]:
    """The step gives its state away; the test's copy stays."""
    mine = jax.tree.map(jnp.copy, state)
    return _compiled(config, batch["tokens"].shape[0])(mine, batch)


def _moments(state: TrainState) -> list[Any]:
    """Adam's first moments: the clipped gradient times 0.1 after one step."""
    return jax.tree.leaves(state.optimizer_state[1].mu)


def test_microbatches_do_not_change_the_update(state: TrainState):
    """Rows hold unequal amounts of padding, so a mean of means would show."""
    whole, whole_metrics = _step(RUN, state, random_batch())
    parts, parts_metrics = _step(with_train(microbatches=2), state, random_batch())
    for one, other in zip(_moments(whole), _moments(parts), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-7)
    np.testing.assert_array_equal(whole.balancing["biases"], parts.balancing["biases"])
    for name in ("loss", "accuracy", "tokens", "class_counts", "residual_rms", "grad_norm"):
        np.testing.assert_allclose(
            getattr(whole_metrics, name), getattr(parts_metrics, name), rtol=1e-5, err_msg=name
        )


def test_loss_is_the_mean_over_weighted_tokens_of_the_plain_model(state: TrainState):
    batch = random_batch()
    batch["loss_weights"] = batch["loss_weights"] * np.linspace(0, 2, 24, dtype=np.float32)[None]
    _, metrics = _step(RUN, state, batch)
    output = Transformer(RUN.model).apply(
        state.variables,
        jnp.asarray(batch["tokens"]),
        positions=jnp.asarray(batch["positions"]),
        segment_ids=jnp.asarray(batch["segment_ids"]),
    )
    log_p = np.asarray(jax.nn.log_softmax(output.logits))
    chosen = np.take_along_axis(log_p, batch["targets"][..., None], axis=-1)[..., 0]
    weights = batch["loss_weights"]
    np.testing.assert_allclose(metrics.loss, -(chosen * weights).sum() / weights.sum(), rtol=1e-5)
    assert float(metrics.tokens) == (batch["segment_ids"] > 0).sum()


def test_padding_rows_change_nothing(state: TrainState):
    """Not the update, not the load, not a metric."""
    batch = random_batch()
    padded = {name: np.concatenate([x, np.zeros_like(x)]) for name, x in batch.items()}
    plain, plain_metrics = _step(RUN, state, batch)
    with_padding, padded_metrics = _step(RUN, state, padded)
    for one, other in zip(_moments(plain), _moments(with_padding), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-7)
    np.testing.assert_array_equal(plain.balancing["biases"], with_padding.balancing["biases"])
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5), plain_metrics, padded_metrics
    )


def test_z_loss_moves_the_gradient_but_not_the_reported_loss(state: TrainState):
    plain, plain_metrics = _step(RUN, state, random_batch())
    with_z, z_metrics = _step(with_train(z_loss_weight=0.1), state, random_batch())
    np.testing.assert_allclose(plain_metrics.loss, z_metrics.loss, rtol=1e-6)
    differences = [
        np.abs(a - b).max() for a, b in zip(_moments(plain), _moments(with_z), strict=True)
    ]
    assert max(differences) > 1e-4


def test_biases_move_by_load_and_never_by_the_loss(state: TrainState):
    new, metrics = _step(RUN, state, random_batch())
    counts = np.asarray(metrics.class_counts)[:, :-1]
    error = counts / counts.sum(-1, keepdims=True) - 1 / counts.shape[-1]
    change = np.asarray(new.balancing["biases"] - state.balancing["biases"])
    np.testing.assert_array_equal(np.sign(change[:, :-1]), -np.sign(error))
    np.testing.assert_array_equal(change[:, -1], 0.0)


def test_repeating_one_batch_learns_it(state: TrainState):
    losses = []
    for _ in range(RUN.train.steps):
        state, metrics = _step(RUN, state, random_batch())
        losses.append(float(metrics.loss))
    assert losses[-1] < losses[0] - 1.5
    assert int(state.step) == RUN.train.steps


def test_state_is_updated_in_place(state: TrainState):
    """Parameters and moments need no second copy."""
    memory = _compiled(RUN, RUN.data.batch_size).memory_analysis()
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert memory.alias_size_in_bytes >= 0.99 * size


def test_validation_agrees_with_the_step(state: TrainState):
    validate = jax.jit(functools.partial(validation_step, RUN), compiler_options=QUICK_COMPILE)
    sums = validate(state.variables, None, random_batch())
    _, metrics = _step(RUN, state, random_batch())
    np.testing.assert_allclose(sums.loss / sums.weight, metrics.loss, rtol=1e-5)


def test_master_weights_and_moments_stay_float32_with_bfloat16_activations():
    config = dataclasses.replace(RUN, model=RUN.model.replace(activation_dtype="bfloat16"))
    step = functools.partial(train_step, config)
    new, metrics = jax.eval_shape(step, abstract_state(config), abstract_batch(config.data))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(new.params)} == {"float32"}
    assert {leaf.dtype.name for leaf in _moments(new)} == {"float32"}
    assert metrics.loss.dtype == np.float32
