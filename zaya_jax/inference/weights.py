"""The model's variables, laid out for generating.

Training stacks layers so that one compiled body serves all. While generating, one token reads every
weight once; a slice of a stack would first be copied. So each layer gets its own arrays here, and
what the model casts on every use is cast once.
"""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float

from zaya_jax.config import ExpertDispatch, Kernels, ModelConfig
from zaya_jax.inference.experts import ExpertMatrices, StackedExperts
from zaya_jax.inference.mesh import place, weight_specs
from zaya_jax.inference.quantized import quantize
from zaya_jax.released import require_released

# Cast to the activation dtype wherever the model uses them; everything else stays float32.
_CAST = {
    ("attention", "query", "weight"),
    ("attention", "key", "weight"),
    ("attention", "value_current", "weight"),
    ("attention", "value_delayed", "weight"),
    ("attention", "output", "weight"),
    ("router", "down", "weight"),
    ("experts", "gate_up"),
    ("experts", "down"),
}


@flax.struct.dataclass
class Weights:
    """Parameters and balancing biases of one version of the model.

    Attributes:
      embedding: float32, also the head's weight where those are tied.
      input_scale: factor of the embedded token.
      input_bias: added to the embedded token before the factor.
      layers: a tree like the parameters of one `Block` for each layer; "experts" as
        `expert_feed_forward` takes them.
      router_state_scale: of each layer; zeros for the first.
      balancing_biases: of each layer.
      final_norm: parameters of the last norm.
      head_weight: float32; None where it is the embedding.
      head_bias: float32 or None.
    """

    embedding: Float[Array, "vocab hidden"]
    input_scale: Float[Array, " hidden"]
    input_bias: Float[Array, " hidden"]
    layers: tuple[dict[str, Any], ...]
    router_state_scale: tuple[Float[Array, " router_hidden"], ...]
    balancing_biases: tuple[Float[Array, " classes"], ...]
    final_norm: dict[str, Any]
    head_weight: Float[Array, "vocab hidden"] | None
    head_bias: Float[Array, " vocab"] | None


def weights_from_variables(
    config: ModelConfig,
    variables: dict[str, Any],
    expert_bits: int | None = None,
    mesh: Mesh | None = None,
) -> Weights:
    """A copy of the variables, layer by layer; the caller may drop the original.

    Args:
      config: architecture the variables belong to.
      variables: `{"params": …, "balancing": {"biases": …}}`.
      expert_bits: of the experts' weights, see `quantized`; None keeps them.
      mesh: of `mesh.engine_mesh`; the copy is placed on it.

    Raises:
      ConfigError: for a variant of the architecture that no release has.
    """
    require_released(config, "the engine cannot run it; `Transformer` can")
    is_split = mesh is not None and mesh.shape["expert"] > 1
    weights = _split(config, variables, expert_bits, is_split)
    return place(weights, weight_specs(weights), mesh)


def _split_layers(
    config: ModelConfig, variables: dict[str, Any], expert_bits: int | None, keep_stacked: bool
) -> Weights:
    params = variables["params"]
    dtype = jnp.dtype(config.activation_dtype)

    def layer(index: int) -> dict[str, Any]:
        def take(path: tuple[Any, ...], stacked: Array) -> Array:
            names = tuple(entry.key for entry in path)
            own = jnp.asarray(stacked[index])
            return own.astype(dtype) if names in _CAST else own

        own = jax.tree_util.tree_map_with_path(take, dict(params["layers"]))
        experts = _experts(config, own["experts"], expert_bits, keep_stacked)
        return {**own, "experts": experts}

    first = jnp.zeros((config.router_hidden_size,), jnp.float32)
    later = [params["router_state_scale"][i] for i in range(config.num_layers - 1)]
    biases = variables["balancing"]["biases"]
    return Weights(
        embedding=params["embedding"],
        input_scale=params["input_scale"],
        input_bias=params["input_bias"],
        layers=tuple(layer(index) for index in range(config.num_layers)),
        router_state_scale=(first, *later),
        balancing_biases=tuple(biases[index] for index in range(config.num_layers)),
        final_norm=dict(params["final_norm"]),
        head_weight=None if config.tie_embeddings else params["head_weight"],
        head_bias=params["head_bias"] if config.head_bias else None,
    )


def _experts(
    config: ModelConfig, params: dict[str, Array], bits: int | None, keep_stacked: bool
) -> ExpertMatrices | StackedExperts:
    """One layer's experts as `expert_feed_forward` wants them."""
    grouped = config.expert_dispatch is ExpertDispatch.GROUPED
    on_cpu = jax.default_backend() == "cpu" and config.kernels is not Kernels.PALLAS
    if bits is None and (keep_stacked or not (grouped and on_cpu)):
        return StackedExperts(params["gate_up"], params["down"])

    def apart(stack: Array) -> tuple[Any, ...]:
        each = (stack[expert] for expert in range(config.num_experts))
        return tuple(each) if bits is None else tuple(quantize(own, bits) for own in each)

    return ExpertMatrices(apart(params["gate_up"]), apart(params["down"]))


_split = jax.jit(_split_layers, static_argnums=(0, 2, 3))
