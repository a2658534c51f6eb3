"""Mistakes that ports of this model have made, as edits of our own source.

Each must turn a parity test red: `tests/parity/test_mutations.py` (slow) makes each edit in a copy
of the tree and runs the named cases. `python -m tests.parity.mutations` lists them.
"""

from __future__ import annotations

import dataclasses
import sys

CCA = "kernels_pallas/cca.py"
ATTENTION = "kernels_pallas/attention.py"
EXPERTS = "kernels_pallas/expert_mlp.py"
NORM = "kernels_pallas/norm.py"
BLOCK = "zaya_jax/model/block.py"
ROPE = "zaya_jax/model/rope.py"
ROUTER = "zaya_jax/model/router.py"
TRANSFORMER = "zaya_jax/model/transformer.py"


@dataclasses.dataclass(frozen=True)
class Mutation:
    """One mistake: replacements in one file, and the parity case that must notice."""

    name: str
    file: str
    edits: tuple[tuple[str, str], ...]  # (text found exactly once, its replacement)
    case: str = "base"


def _edit(name: str, file: str, old: str, new: str, case: str = "base") -> Mutation:
    return Mutation(name, file, ((old, new),), case)


MUTATIONS = (
    _edit(
        "residual_affine_omitted",
        NORM,
        "return scaled_hidden + scaled_skip",
        "return hidden + residual",
    ),
    Mutation(
        "hidden_and_residual_affine_swapped",
        NORM,
        (
            ("    hidden = hidden.astype(jnp.float32)\n", ""),
            (
                "    residual = residual.astype(jnp.float32)\n",
                "    hidden, residual = residual, hidden.astype(jnp.float32)\n",
            ),
        ),
    ),
    Mutation(
        "scale_before_bias",
        NORM,
        (
            (
                "scaled_hidden = (hidden + _per_channel(hidden_bias, hidden)) * _per_channel(\n"
                "        hidden_scale, hidden\n    )",
                "scaled_hidden = hidden * _per_channel(hidden_scale, hidden) + _per_channel(\n"
                "        hidden_bias, hidden\n    )",
            ),
        ),
    ),
    Mutation(
        "residual_scale_sites_exchanged",
        BLOCK,
        (
            ('name="attention_residual"', 'name="x_residual"'),
            ('name="expert_residual"', 'name="attention_residual"'),
            ('name="x_residual"', 'name="expert_residual"'),
        ),
    ),
    _edit(
        "residual_stream_rounded_to_bfloat16",
        BLOCK,
        "return LayerCarry(residual, routed.state)",
        "residual = residual.astype(jnp.bfloat16).astype(jnp.float32)\n"
        "        return LayerCarry(residual, routed.state)",
    ),
    _edit(
        "input_scale_and_bias_omitted",
        TRANSFORMER,
        "residual = (embedded + self.input_bias[None, None, :]) * self.input_scale[None, None, :]",
        "residual = embedded",
    ),
    Mutation(
        "value_halves_swapped",
        CCA,
        (
            (
                "[value_current, _delay(value_delayed, weights.delayed_value_bias, segment_ids)]",
                "[_delay(value_delayed, weights.delayed_value_bias, segment_ids), value_current]",
            ),
        ),
    ),
    _edit(
        "values_split_within_each_head",
        CCA,
        "value = value.reshape(batch, seq, kv_heads, head_dim)",
        "value = value.reshape(batch, seq, 2, kv_heads, head_dim // 2)\n"
        "    value = value.swapaxes(2, 3).reshape(batch, seq, kv_heads, head_dim)",
    ),
    _edit(
        "delayed_value_not_delayed",
        CCA,
        "return shift_in_segment(value, 1, bias, segment_ids)",
        "return value",
    ),
    _edit(
        "first_delayed_value_is_the_token_itself",
        CCA,
        "return shift_in_segment(value, 1, bias, segment_ids)",
        "return jnp.concatenate([value[:, :1], value[:, :-1]], axis=1)",
    ),
    _edit(
        "query_mean_omitted",
        CCA,
        "query = convolved[:, :, :query_heads] + mean_query",
        "query = convolved[:, :, :query_heads]",
    ),
    _edit(
        "key_mean_omitted",
        CCA,
        "key = convolved[:, :, query_heads:] + mean_key",
        "key = convolved[:, :, query_heads:]",
    ),
    _edit(
        "raw_key_as_key_mean",
        CCA,
        "mean_key = jnp.mean(mean_query, axis=3)",
        "mean_key = key[:, :, :, 0]",
    ),
    _edit(
        "strided_query_mean",
        CCA,
        "mean_key = jnp.mean(mean_query, axis=3)",
        "strided = mean_query.reshape(batch, seq, -1, kv_heads, head_dim)\n"
        "    mean_key = jnp.mean(strided, axis=2)",
    ),
    _edit(
        "temperature_exponentiated",
        CCA,
        "temperature = weights.temperature.astype(jnp.float32)",
        "temperature = jnp.exp(weights.temperature.astype(jnp.float32))",
    ),
    _edit(
        "temperature_omitted",
        CCA,
        "_scale_to_unit_variance(key) * temperature",
        "_scale_to_unit_variance(key)",
    ),
    _edit(
        "convolutions_read_the_future",
        CCA,
        "jnp.concatenate([head, x[:, : max(seq - distance, 0)]], axis=1)",
        "jnp.concatenate([x[:, distance:], head], axis=1)",
    ),
    _edit(
        "depthwise_taps_flipped",
        CCA,
        "taps[:, width - 1 - distance]",
        "taps[:, distance]",
    ),
    _edit(
        "grouped_taps_flipped",
        CCA,
        "taps[..., width - 1 - distance]",
        "taps[..., distance]",
    ),
    _edit(
        "each_convolution_padded_by_itself",
        CCA,
        "shift_in_segment(mixed, distance, weights.depthwise_bias, segment_ids)",
        "shift_in_segment(mixed, distance, None, segment_ids)",
    ),
    Mutation(
        "kv_heads_tiled_instead_of_repeated",
        ATTENTION,
        (
            (
                "finite.query.reshape(batch, seq, kv_heads, query_heads // kv_heads, head_dim)",
                "finite.query.reshape(batch, seq, query_heads // kv_heads, kv_heads, head_dim)"
                ".swapaxes(2, 3)",
            ),
            (
                "axis=1).reshape(batch, seq, query_heads, head_dim)",
                "axis=1).swapaxes(2, 3).reshape(batch, seq, query_heads, head_dim)",
            ),
        ),
    ),
    _edit(
        "window_one_key_too_wide",
        ATTENTION,
        "(distance < window)",
        "(distance <= window)",
        "sliding",
    ),
    _edit(
        "sliding_layers_use_the_full_rope_base",
        TRANSFORMER,
        "thetas += [config.sliding_rope_theta]",
        "thetas += [config.rope_theta]",
        "sliding",
    ),
    _edit(
        "rope_base_ten_thousand",
        TRANSFORMER,
        "rope_tables(positions, config.rotary_dim, theta)",
        "rope_tables(positions, config.rotary_dim, 1e4)",
    ),
    _edit(
        "rope_exponents_over_head_dim",
        ROPE,
        "np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim",
        "np.arange(0, rotary_dim, 2, dtype=np.float64) / (2 * rotary_dim)",
    ),
    _edit(
        "gate_renormalised_to_one",
        ROUTER,
        "gate = jnp.where(class_index == config.num_experts, 0.0, gate)",
        "gate = jnp.where(class_index == config.num_experts, 0.0, 1.0)",
    ),
    _edit(
        "biased_probability_as_gate",
        ROUTER,
        "gate = self._choice(probabilities, class_index).gate",
        "gate = self._choice(probabilities + balancing_biases[None, None], class_index).gate",
    ),
    _edit(
        "balancing_biases_ignored",
        ROUTER,
        "jax.lax.stop_gradient(probabilities) + balancing_biases[None, None, :]",
        "jax.lax.stop_gradient(probabilities)",
    ),
    _edit(
        "balancing_biases_added_to_logits",
        ROUTER,
        "choose_class(probabilities, balancing_biases)",
        "choose_class(logits, balancing_biases)",
    ),
    _edit(
        "softmax_without_the_skip_class",
        ROUTER,
        "probabilities = jax.nn.softmax(logits, axis=-1)",
        "probabilities = jnp.pad(\n"
        "            jax.nn.softmax(logits[..., :-1], axis=-1), ((0, 0), (0, 0), (0, 1))\n"
        "        )",
    ),
    _edit(
        "router_state_passed_on_after_the_norm",
        ROUTER,
        "return RouterOutput(",
        "state = state * jax.lax.rsqrt(jnp.mean(jnp.square(state), -1, keepdims=True))\n"
        "        return RouterOutput(",
    ),
    Mutation(
        "router_state_passed_on_before_the_addition",
        ROUTER,
        (
            (
                "state = state + previous_state * state_scale[None, None, :]",
                "mixed = state + previous_state * state_scale[None, None, :]",
            ),
            ("return state, self._mlp(state)", "return state, self._mlp(mixed)"),
        ),
    ),
    _edit(
        "depth_mixing_removed",
        ROUTER,
        "state = state + previous_state * state_scale[None, None, :]",
        "state = state + 0.0 * previous_state",
    ),
    _edit(
        "depth_mixing_scale_ignored",
        ROUTER,
        "previous_state * state_scale[None, None, :]",
        "previous_state * (state_scale != 0)[None, None, :]",
    ),
    _edit("gelu_tanh_for_erf", ROUTER, "approximate=False", "approximate=True", "strong_router"),
    _edit(
        "router_norm_epsilon_1e-6",
        ROUTER,
        'RMSNorm(config.rms_norm_epsilon, jnp.dtype(jnp.float32), name="norm")',
        'RMSNorm(1e-6, jnp.dtype(jnp.float32), name="norm")',
        "tiny_router_state",
    ),
    _edit(
        "expert_gate_and_up_swapped",
        EXPERTS,
        "g, u = jnp.split(_product(x, gate_up.astype(x.dtype), 1, 1), 2, axis=-1)",
        "u, g = jnp.split(_product(x, gate_up.astype(x.dtype), 1, 1), 2, axis=-1)",
    ),
    _edit(
        "expert_gate_and_up_interleaved",
        EXPERTS,
        "g, u = jnp.split(_product(x, gate_up.astype(x.dtype), 1, 1), 2, axis=-1)",
        "gu = _product(x, gate_up.astype(x.dtype), 1, 1)\n        g, u = gu[:, ::2], gu[:, 1::2]",
    ),
)


def mutated(mutation: Mutation, source: str) -> str:
    """The file's text with the mistake in it.

    Raises:
      ValueError: when a text to be replaced is not there exactly once, so the edit is stale.
    """
    for old, new in mutation.edits:
        if source.count(old) != 1:
            raise ValueError(f"{mutation.name}: {old!r} is {source.count(old)} times in the source")
        source = source.replace(old, new)
    return source


if __name__ == "__main__":
    sys.stdout.writelines(f"{m.name} ({m.file}, case {m.case})\n" for m in MUTATIONS)
