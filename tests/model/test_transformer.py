"""What the whole model must keep whatever its weights: segments, padding, causality, loops."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.parity.cases import CASE_BY_NAME, ParityCase
from tests.parity.ours import case_variables
from zaya_jax.config import ModelConfig
from zaya_jax.model.outputs import TransformerOutput
from zaya_jax.model.transformer import Transformer

# Largest differences measured are about 3e-6 on logits of size 1; rounding alone.
ROUNDING = 2e-5

# Biases on every projection, wide convolutions, a window: everything that could leak.
LEAKY_CASES = ("attention_bias", "conv_4_3", "sliding")


@functools.cache
def variables_of(name: str) -> Any:
    return case_variables(CASE_BY_NAME[name])


@functools.cache
def compiled(config: ModelConfig) -> Any:
    model = Transformer(config)

    def forward(variables: Any, tokens: Any, positions: Any, segment_ids: Any) -> TransformerOutput:
        return model.apply(variables, tokens, positions=positions, segment_ids=segment_ids)

    return jax.jit(forward)


def logits_of(
    name: str,
    tokens: np.ndarray,
    segment_ids: np.ndarray | None = None,
    positions: np.ndarray | None = None,
) -> np.ndarray:
    forward = compiled(CASE_BY_NAME[name].model)
    return np.asarray(forward(variables_of(name), tokens, positions, segment_ids).logits)


def random_tokens(case: ParityCase, *shape: int) -> np.ndarray:
    return np.random.default_rng(7).integers(0, case.model.vocab_size, shape, dtype=np.int32)


@pytest.mark.parametrize("name", LEAKY_CASES)
def test_packed_segments_equal_separate_sequences(name: str) -> None:
    lengths = (1, 2, 7, 1, 7, 2)  # few shapes to compile
    row = random_tokens(CASE_BY_NAME[name], 1, sum(lengths))
    segment_ids = np.repeat(np.arange(1, len(lengths) + 1), lengths)[None].astype(np.int32)
    positions = np.concatenate([np.arange(n) for n in lengths])[None].astype(np.int32)
    packed = logits_of(name, row, segment_ids, positions)
    start = 0
    for length in lengths:
        stop = start + length
        alone = logits_of(name, row[:, start:stop])
        # The first two tokens are where convolutions and the delayed value would leak.
        np.testing.assert_allclose(
            packed[:, start : min(start + 2, stop)], alone[:, :2], atol=ROUNDING
        )
        np.testing.assert_allclose(packed[:, start:stop], alone, atol=ROUNDING)
        start = stop


@pytest.mark.parametrize("name", LEAKY_CASES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_rows_equal_the_unpadded_row(name: str, side: str) -> None:
    pad, length = 5, 9
    tokens = random_tokens(CASE_BY_NAME[name], 1, length)
    alone = logits_of(name, tokens)
    widths = ((0, 0), (pad, 0) if side == "left" else (0, pad))
    padded_tokens = np.pad(tokens, widths, constant_values=3)
    segment_ids = np.pad(np.ones_like(tokens), widths)
    padded = logits_of(name, padded_tokens, segment_ids)
    real = slice(pad, None) if side == "left" else slice(0, length)
    np.testing.assert_allclose(padded[:, real], alone, atol=ROUNDING)


def test_padding_counts_in_no_load() -> None:
    case = CASE_BY_NAME["base"]
    tokens = random_tokens(case, 2, 10)
    segment_ids = np.ones_like(tokens)
    segment_ids[1] = 0
    model = Transformer(case.model)
    routing = model.apply(variables_of("base"), tokens, segment_ids=segment_ids).routing
    first_row = model.apply(variables_of("base"), tokens[:1]).routing
    ours, alone = np.asarray(routing.class_counts), np.asarray(first_row.class_counts)
    np.testing.assert_array_equal(ours, alone)
    np.testing.assert_allclose(np.asarray(routing.load).sum(axis=-1), 1.0, rtol=1e-6)


@pytest.mark.parametrize("name", LEAKY_CASES)
def test_no_logit_depends_on_a_later_token(name: str) -> None:
    case = CASE_BY_NAME[name]
    # A vocabulary of one row per position, so that the embedding's gradient tells positions apart.
    model = Transformer(case.model.replace(vocab_size=12))
    variables = variables_of(name)
    tokens = random_tokens(case, 1, 12)

    def logit_sum(offset: jax.Array, position: jax.Array) -> jax.Array:
        """Sum of the logits at `position` with the embedding of every token moved by `offset`."""
        params = dict(variables["params"])
        params["embedding"] = params["embedding"][tokens[0]] + offset
        own = {**variables, "params": params}
        rows = np.arange(12, dtype=np.int32)[None]
        states = model.apply(own, rows, method=Transformer.hidden_states)
        return jnp.sum(states.final[0, position])

    gradient = jax.jit(jax.grad(logit_sum))
    offset = jnp.zeros((12, case.model.hidden_size))
    for position in (0, 1, 5):
        sizes = np.abs(gradient(offset, jnp.int32(position))).max(axis=-1)
        assert np.all(sizes[position + 1 :] == 0.0)
        assert sizes[position] > 0.0


@functools.cache
def squared_logits_and_gradients(layer_loop: str, remat: str) -> tuple[float, list[np.ndarray]]:
    case = CASE_BY_NAME["sliding"]
    model = Transformer(case.model.replace(layer_loop=layer_loop, remat=remat))
    variables, tokens = variables_of("sliding"), random_tokens(case, 2, 12)

    def loss(params: Any) -> jax.Array:
        own = {**variables, "params": params}
        return jnp.mean(jnp.square(model.apply(own, tokens).logits))

    value, gradients = jax.jit(jax.value_and_grad(loss))(variables["params"])
    return float(value), [np.asarray(leaf) for leaf in jax.tree.leaves(gradients)]


@pytest.mark.parametrize(
    ("layer_loop", "remat"),
    [
        ("scan", "dots"),
        ("scan", "full"),
        ("scan", "offload"),
        ("unroll", "none"),
        pytest.param("unroll", "full", marks=pytest.mark.slow),
    ],
)
def test_loops_and_remat_change_neither_values_nor_gradients(layer_loop: str, remat: str) -> None:
    value, gradients = squared_logits_and_gradients("scan", "none")
    other_value, other = squared_logits_and_gradients(layer_loop, remat)
    assert value == pytest.approx(other_value, rel=1e-6)
    for ours, theirs in zip(gradients, other, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(ours).max())


@pytest.mark.parametrize("favourite", [0, 3, 4], ids=["first_expert", "last_expert", "skip"])
def test_dense_equals_grouped_when_all_tokens_take_one_class(favourite: int) -> None:
    case = CASE_BY_NAME["base"]
    biases = np.zeros((case.model.num_layers, case.model.num_router_classes), np.float32)
    biases[:, favourite] = 10.0
    variables = {**variables_of("base"), "balancing": {"biases": jnp.asarray(biases)}}
    tokens = random_tokens(case, 1, 37)  # not divisible by any tile
    outputs = {
        dispatch: compiled(case.model.replace(expert_dispatch=dispatch))(
            variables, tokens, None, None
        )
        for dispatch in ("dense", "grouped")
    }
    assert np.all(outputs["grouped"].routing.expert_index == favourite)
    grouped, dense = (np.asarray(outputs[name].logits) for name in ("grouped", "dense"))
    np.testing.assert_allclose(grouped, dense, rtol=0, atol=ROUNDING)


def test_bfloat16_keeps_the_residual_stream_and_logits_in_float32() -> None:
    case = CASE_BY_NAME["base"]
    model = Transformer(case.model.replace(activation_dtype="bfloat16"))
    tokens = random_tokens(case, 1, 6)
    states = model.apply(variables_of("base"), tokens, method=Transformer.hidden_states)
    assert states.per_layer.dtype == jnp.float32
    assert states.routing.logits.dtype == jnp.float32
    bits = jax.lax.bitcast_convert_type(states.per_layer, jnp.uint32)
    assert np.any(np.asarray(bits) & 0xFFFF), "the stream was rounded to bfloat16"
    close = logits_of("base", tokens)
    logits = model.apply(variables_of("base"), tokens).logits
    assert logits.dtype == jnp.float32
    assert np.abs(logits - close).max() < 0.1 * np.abs(close).max()


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    case = CASE_BY_NAME["base"]
    tokens = np.array([[1, 96, 2]], np.int32)
    with pytest.raises(ValueError, match=r"token id 96 is outside the vocabulary 0\.\.95"):
        Transformer(case.model).apply(variables_of("base"), tokens)


def test_a_sequence_longer_than_the_model_accepts_is_refused() -> None:
    case = CASE_BY_NAME["base"]
    tokens = np.zeros((1, 129), np.int32)
    with pytest.raises(ValueError, match=r"129 tokens.*max_position_embeddings=128"):
        Transformer(case.model).apply(variables_of("base"), tokens)
