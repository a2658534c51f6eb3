"""Everything that one step of training reads and writes."""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, UInt32

from zaya_jax.config import ExpertDispatch, Kernels
from zaya_jax.data.config import DataConfig
from zaya_jax.data.packing import BATCH_DTYPES
from zaya_jax.lora import init_adapters, merge_adapters
from zaya_jax.model.transformer import Transformer
from zaya_jax.optimizer.balancing import balancing_optimizer, init_balancing
from zaya_jax.optimizer.create import create_optimizer
from zaya_jax.training.settings import RunConfig

_ADAPTER_STREAM = 1  # of a run's random streams, the one that new adapters are drawn from


@flax.struct.dataclass
class TrainState:
    """The state of a run between two steps. Saved whole in every checkpoint.

    Attributes:
      step: updates made.
      params: float32 master weights that are trained: the model's, or in a LoRA run adapters.
      optimizer_state: the optimiser's moments and counts.
      balancing: `{"biases": …}`, the router's balancing biases.
      balancing_optimizer_state: moments of the load error.
      rng: key data of the run's random stream. The model draws nothing while training; sampling
        and later stages fold `step` into it.
      base: a LoRA run's frozen parameters, which no checkpoint repeats; None in other runs.
    """

    step: Int[Array, ""]
    params: Any
    optimizer_state: optax.OptState
    balancing: dict[str, Float[Array, "layers classes"]]
    balancing_optimizer_state: optax.OptState
    rng: UInt32[Array, " 2"]
    base: Any = None

    @property
    def variables(self) -> dict[str, Any]:
        """Trained parameters and biases: what a checkpoint holds of the model."""
        return {"params": self.params, "balancing": self.balancing}


def init_state(config: RunConfig, rng: Array) -> TrainState:
    """A new run's state. Pure: jit it with shardings, or `jax.eval_shape` it to allocate nothing.

    Args:
      config: the run.
      rng: key data, uint32 [2].
    """
    init_key, run_key = jax.random.split(jax.random.wrap_key_data(rng))
    tokens = jnp.zeros((1, 2), jnp.int32)  # shapes of parameters do not depend on it
    # The forms of an operation have the same parameters; these compile soonest, and anywhere.
    model = config.model.replace(expert_dispatch=ExpertDispatch.DENSE, kernels=Kernels.XLA)
    variables: Any = Transformer(model).init(init_key, tokens)
    return state_from_variables(config, variables, jax.random.key_data(run_key))


def state_from_variables(config: RunConfig, variables: dict[str, Any], rng: Array) -> TrainState:
    """A state at step 0 with the given parameters and balancing biases and new optimisers.

    In a LoRA run the given parameters are the frozen ones, and the trained ones are new adapters.
    """
    params, balancing, base = variables["params"], variables["balancing"], None
    if config.lora.rank:
        key = jax.random.fold_in(jax.random.wrap_key_data(rng), _ADAPTER_STREAM)
        params, base = init_adapters(key, params, config.lora), params
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        optimizer_state=create_optimizer(config.optimizer, config.train.steps).init(params),
        balancing=balancing,
        balancing_optimizer_state=init_balancing(
            balancing_optimizer(config.optimizer, config.train.steps), balancing["biases"]
        ),
        rng=rng,
        base=base,
    )


def model_params(config: RunConfig, params: Any, base: Any) -> Any:
    """What `Transformer.apply` takes, from a state's trained parameters and its frozen ones."""
    return params if base is None else merge_adapters(base, params, config.lora)


def abstract_state(config: RunConfig) -> TrainState:
    """Shapes and dtypes of the state, with nothing allocated."""
    rng = jax.ShapeDtypeStruct((2,), jnp.uint32)
    return jax.eval_shape(lambda key: init_state(config, key), rng)


def abstract_batch(config: DataConfig) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and dtypes of one step's batch."""
    shape = (config.batch_size, config.sequence_length)
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name, dtype in BATCH_DTYPES.items()}


def seed_key_data(seed: int) -> Array:
    """Key data of a seed, uint32 [2]."""
    return jax.random.key_data(jax.random.key(seed, impl="threefry2x32"))
