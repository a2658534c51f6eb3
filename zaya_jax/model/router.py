"""The router: a small MLP on a down-projection that is mixed over depth (EDA).

For a token at layer l, with s_l the router state and b the balancing biases:

    s_l = W_down x + b_down + scale_l * s_{l-1}       (no second term in the first layer)
    p   = softmax(MLP(RMSNorm(s_l)))                  over the experts and the skip class
    e   = argmax(p + b)                               b decides only the choice, never the weight
    g   = p_e, or 0 when e is the skip class

Everything after the down-projection's products is float32. The state goes to the next layer after
the addition and before the norm (arXiv 2605.05365, Sec. II; arXiv 2511.17127, Sec. IV).

Variants: `mlp` has no second term in any layer, `linear` scores with one matrix on x; neither looks
at the state before. With k experts a token, e is the k classes of the highest p + b, and each has
its own p as weight. Without a skip class the softmax is over the experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from zaya_jax.config import ModelConfig
from zaya_jax.model import initialization
from zaya_jax.model.linear import Linear
from zaya_jax.model.norm import RMSNorm
from zaya_jax.variants import RouterKind, SkipClass


class Choice(NamedTuple):
    """One of the classes that each token goes to."""

    class_index: Int[Array, "batch seq"]  # the last one is the skip class
    gate: Float[Array, "batch seq"]  # weight of the expert's output


class RouterOutput(NamedTuple):
    """One layer's routing decision, and the state for the next layer's router."""

    class_index: Int[Array, "batch seq"]  # chosen class; the last one is the skip class
    gate: Float[Array, "batch seq"]  # weight of the expert's output
    logits: Float[Array, "batch seq classes"]
    probabilities: Float[Array, "batch seq classes"]
    state: Float[Array, "batch seq router_hidden"]
    further: tuple[Choice, ...]  # second and later choices; none with one expert per token


class Router(nn.Module):
    """Scores every expert and the skip class for every token."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch seq hidden"],
        *,
        previous_state: Float[Array, "batch seq router_hidden"],
        state_scale: Float[Array, "router_hidden"],
        balancing_biases: Float[Array, "classes"],
        recorded_class: Int[Array, "batch seq"] | None = None,
    ) -> RouterOutput:
        """Routes each token; the first layer gets a zero state and a zero scale.

        `recorded_class` replays choices made elsewhere: raw classes, the skip class among them,
        and -1 where the router chooses. The gate is the live probability of the class either way,
        not renormalised, so that the router keeps its gradient (arXiv 2605.05365, Sec. V).
        """
        config = self.config
        state, logits = self._score(x, previous_state, state_scale)
        probabilities = jax.nn.softmax(logits, axis=-1)
        if config.skip_class is SkipClass.NONE:
            last = ((0, 0), (0, 0), (0, 1))
            logits = jnp.pad(logits, last, constant_values=-jnp.inf)
            probabilities = jnp.pad(probabilities, last)
            balancing_biases = balancing_biases.at[-1].set(-jnp.inf)
        class_index = choose_class(probabilities, balancing_biases)
        further, taken = [], [class_index]
        for _ in range(config.experts_per_token - 1):
            taken.append(choose_class(probabilities, balancing_biases, besides=taken))
            further.append(self._choice(probabilities, taken[-1]))
        if recorded_class is not None:
            class_index = jnp.where(recorded_class >= 0, recorded_class, class_index)
        gate = self._choice(probabilities, class_index).gate
        return RouterOutput(class_index, gate, logits, probabilities, state, tuple(further))

    def _choice(self, probabilities: Array, class_index: Array) -> Choice:
        config = self.config
        gate = jnp.take_along_axis(probabilities, class_index[..., None], axis=-1)[..., 0]
        gate = jnp.where(class_index == config.num_experts, 0.0, gate)
        return Choice(class_index, gate)

    def _score(
        self, x: Array, previous_state: Array, state_scale: Array
    ) -> tuple[Float[Array, "batch seq router_hidden"], Float[Array, "batch seq scored"]]:
        """The router's state, and logits of all classes that have one."""
        config = self.config
        if config.router is RouterKind.LINEAR:
            return previous_state, self._dense("out", self._scored_classes, False)(x)
        state = Linear(
            features=config.router_hidden_size,
            use_bias=True,
            kernel_init=initialization.matrix(config),
            dtype=jnp.dtype(config.activation_dtype),
            output_dtype=jnp.float32,
            name="down",
        )(x)
        if config.router is RouterKind.MLP_EDA:
            state = state + previous_state * state_scale[None, None, :]
        return state, self._mlp(state)

    @property
    def _scored_classes(self) -> int:
        return self.config.num_experts + (self.config.skip_class is SkipClass.ZERO)

    def _mlp(self, state: Array) -> Array:
        config = self.config
        x = RMSNorm(config.rms_norm_epsilon, jnp.dtype(jnp.float32), name="norm")(state)
        for name in ("fc1", "fc2"):
            x = jax.nn.gelu(
                self._dense(name, config.router_hidden_size, True)(x), approximate=False
            )
        return self._dense("out", self._scored_classes, False)(x)

    def _dense(self, name: str, features: int, use_bias: bool) -> Linear:
        config = self.config
        is_linear = config.router is RouterKind.LINEAR
        inputs = config.hidden_size if is_linear else config.router_hidden_size
        return Linear(
            features=features,
            use_bias=use_bias,
            kernel_init=initialization.router_matrix(config, inputs),
            dtype=jnp.dtype(jnp.float32),
            name=name,
        )


def choose_class(
    probabilities: Float[Array, "batch seq classes"],
    balancing_biases: Float[Array, "classes"],
    besides: Sequence[Int[Array, "batch seq"]] = (),
) -> Int[Array, "batch seq"]:
    """The class of the highest biased probability; the lowest index wins a tie. No gradient.

    Args:
      probabilities: of every class.
      balancing_biases: added to them.
      besides: classes that are taken already.
    """
    biased = jax.lax.stop_gradient(probabilities) + balancing_biases[None, None, :]
    for taken in besides:
        chosen = jax.nn.one_hot(taken, biased.shape[-1], dtype=jnp.bool_)
        biased = jnp.where(chosen, -jnp.inf, biased)
    return jnp.argmax(biased, axis=-1).astype(jnp.int32)
