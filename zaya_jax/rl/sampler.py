"""What the RL loop asks of whatever samples responses, and the plainest thing that does it.

A sampler draws from the model's own distribution at temperature 1, with nothing cut off: the
trainer compares its probabilities with those that sampled, so that both must be of the same
distribution. The inference engine or an external server stands behind the same few methods.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from zaya_jax.config import ModelConfig
from zaya_jax.model.transformer import Transformer, head_logits
from zaya_jax.rl.errors import RLError


class Sampled(NamedTuple):
    """One response.

    Attributes:
      tokens: drawn ids, the stop token included, int32.
      log_probs: of each under the distribution that drew it, float32.
      versions: of the weights that drew it, int32.
      routes: raw router classes [rows, layers], one row for every token that was fed.
      truncated: ended by its length.
    """

    tokens: np.ndarray
    log_probs: np.ndarray
    versions: np.ndarray
    routes: np.ndarray
    truncated: bool


@runtime_checkable
class Sampler(Protocol):
    """Draws responses with the weights it was last given."""

    @property
    def version(self) -> int:
        """Of its weights."""
        ...

    def load_weights(self, variables: dict[str, Any]) -> int:
        """Takes new weights; returns their version."""
        ...

    def sample(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Sampled]:
        """One response for each prompt. The same weights, prompt and seed draw the same."""
        ...


class ForwardSampler:
    """Runs the whole model on the whole sequence for every token: no cache, for small models.

    Its numbers are those of the trainer's forward pass, whatever the model's variants.
    """

    def __init__(
        self,
        config: ModelConfig,
        variables: dict[str, Any],
        *,
        stop_token: int,
        most_prompt_tokens: int,
        most_tokens: int,
    ) -> None:
        """Takes the first weights, version 0.

        Args:
          config: of the model; its activation dtype is the sampler's.
          variables: parameters and balancing biases.
          stop_token: ends a response.
          most_prompt_tokens: longest prompt; all are padded to it.
          most_tokens: longest response.

        Raises:
          RLError: when the model has too few positions.
        """
        total = most_prompt_tokens + most_tokens
        if total > config.max_position_embeddings:
            raise RLError(
                f"prompts of {most_prompt_tokens} and responses of {most_tokens} tokens exceed the "
                f"model's {config.max_position_embeddings} positions"
            )
        self._config, self._variables, self._version = config, variables, 0
        self._stop, self._prompt, self._most = stop_token, most_prompt_tokens, most_tokens

    @property
    def version(self) -> int:
        """Weights taken since the first."""
        return self._version

    def load_weights(self, variables: dict[str, Any]) -> int:
        """See `Sampler`."""
        self._variables = variables
        self._version += 1
        return self._version

    def sample(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Sampled]:
        """See `Sampler`.

        Raises:
          RLError: for a prompt that is empty or too long.
        """
        if not prompts:
            return []
        rows = 1 << (len(prompts) - 1).bit_length()  # few shapes: each is compiled anew
        tokens = np.zeros((rows, self._prompt + self._most), np.int32)
        for row, prompt in enumerate(prompts):
            if not 0 < len(prompt) <= self._prompt:
                raise RLError(f"a prompt of {len(prompt)} tokens: must be 1 to {self._prompt}")
            tokens[row, : len(prompt)] = prompt
        lengths, words = np.ones(rows, np.int32), np.zeros((rows, 2), np.uint32)
        lengths[: len(prompts)] = [len(prompt) for prompt in prompts]
        words[: len(prompts)] = [[seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF] for seed in seeds]
        drawn = jax.device_get(
            _draw(self._config, self._most, self._variables, tokens, lengths, words)
        )
        return [self._finished(drawn, row, int(lengths[row])) for row in range(len(prompts))]

    def _finished(self, drawn: _Drawn, row: int, start: int) -> Sampled:
        stops = np.flatnonzero(drawn.tokens[row] == self._stop)
        count = int(stops[0]) + 1 if len(stops) else self._most
        return Sampled(
            tokens=drawn.tokens[row, :count],
            log_probs=np.minimum(drawn.log_probs[row, :count], 0.0),
            versions=np.full(count, self._version, np.int32),
            routes=drawn.routes[:, row, : start + count - 1].T.astype(np.uint8),
            truncated=not len(stops),
        )


class _Drawn(NamedTuple):
    tokens: Any  # int32 [rows, steps]
    log_probs: Any  # float32 [rows, steps]
    routes: Any  # int32 [layers, rows, total]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _draw(
    config: ModelConfig, steps: int, variables: Any, tokens: Array, lengths: Array, seeds: Array
) -> _Drawn:
    model, rows = Transformer(config), jnp.arange(tokens.shape[0])
    keys = jax.vmap(lambda words: jax.random.wrap_key_data(words, impl="threefry2x32"))(seeds)

    def states(tokens: Array) -> Any:
        return model.apply(variables, tokens, method=Transformer.hidden_states)

    def step(tokens: Array, t: Array) -> tuple[Array, tuple[Array, Array]]:
        last = states(tokens).final[rows, lengths + t - 1]  # [rows, hidden]
        head: Any = model.apply(variables, method=Transformer.head)
        weight, bias = head
        logits = head_logits(last[:, None, :], weight, bias)[:, 0]
        table = jax.nn.log_softmax(logits, axis=-1)
        chosen = jax.vmap(lambda key, row: jax.random.categorical(jax.random.fold_in(key, t), row))(
            keys, table
        ).astype(jnp.int32)
        tokens = tokens.at[rows, lengths + t].set(chosen)
        return tokens, (chosen, table[rows, chosen])

    tokens, (chosen, log_probs) = jax.lax.scan(step, tokens, jnp.arange(steps))
    return _Drawn(chosen.T, log_probs.T, states(tokens).routing.expert_index)
