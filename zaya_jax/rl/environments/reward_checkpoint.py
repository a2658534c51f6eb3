"""A reward model of ours: a checkpoint whose last hidden state a scalar head reads.

    reward = sigmoid(weight . final_T + bias)

final_T is the state after the last norm at the last token of the conversation, in float32: the
prompt as the user's turn, the response as the assistant's, without thinking. The head is a NumPy
file beside the checkpoint, `reward_head.npz`, with `weight` [hidden] and `bias` [], of the same
training as the checkpoint. 2 parameters FLOPs a token, no cache: each response is one forward pass.
"""

from __future__ import annotations

import functools
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from zaya_jax.checkpoint.load import load_checkpoint
from zaya_jax.config import ModelConfig
from zaya_jax.data.chat import ChatTemplate
from zaya_jax.data.conversation import Conversation, Message
from zaya_jax.data.tokenizer import Tokenizer
from zaya_jax.model.transformer import Transformer
from zaya_jax.rl.environments.protocol import BrokenEnvironmentError
from zaya_jax.rl.errors import RLError

HEAD_FILE = "reward_head.npz"
_LEAST_TOKENS = 32  # rows are padded to this times a power of two: few shapes, each compiled once


class Head(NamedTuple):
    """The scalar head, float32."""

    weight: Float[np.ndarray, " hidden"]
    bias: Float[np.ndarray, ""]


class RewardCheckpoint:
    """A `RewardModel`; calls from several threads wait for the device one after the other."""

    def __init__(
        self, path: str | Path, tokenizer: Tokenizer, *, head: str | Path | None = None
    ) -> None:
        """Loads weights and head.

        Args:
          path: anything that `load_checkpoint` takes.
          tokenizer: of the checkpoint, with the control tokens of the chat template.
          head: file of the head; None: `reward_head.npz` in `path`.

        Raises:
          CheckpointError: when there is no such checkpoint.
          DataError: when the tokenizer lacks control tokens.
          RLError: when the head is missing, or belongs to another model.
        """
        self._config, self._variables = load_checkpoint(path)
        file = Path(path) / HEAD_FILE if head is None else Path(head)
        self._head = read_head(file, self._config.hidden_size)
        self._template, self._path = ChatTemplate(tokenizer), path

    def score(self, prompt: str, response: str) -> float:
        """See `RewardModel`.

        Raises:
          BrokenEnvironmentError: when the conversation exceeds the model's positions, or the score
            is not finite.
        """
        turns = (Message("user", prompt), Message("assistant", response))
        rendered = self._template.render(Conversation(turns), thinking=False)
        tokens = rendered.arrays()[0]
        length, most = len(tokens), self._config.max_position_embeddings
        if length > most:
            raise BrokenEnvironmentError(
                f"reward model {self._path}: {length} tokens of prompt and response, it has "
                f"{most} positions"
            )
        room = _LEAST_TOKENS
        while room < length:
            room *= 2
        row = np.zeros((1, min(room, most)), np.int32)
        row[0, :length] = tokens
        reward = float(_reward(self._config, self._variables, self._head, row, np.int32(length)))
        if not np.isfinite(reward):
            raise BrokenEnvironmentError(f"reward model {self._path}: the score is {reward}")
        return reward


def read_head(file: Path, hidden_size: int) -> Head:
    """The head in a NumPy file.

    Raises:
      RLError: when it is missing, damaged or of another size.
    """
    try:
        with np.load(file, allow_pickle=False) as arrays:
            head = Head(*(np.asarray(arrays[name], np.float32) for name in ("weight", "bias")))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise RLError(f"{file} is no reward head with weight and bias: {error}") from error
    if head.weight.shape != (hidden_size,) or head.bias.shape != ():
        raise RLError(
            f"{file}: weight {list(head.weight.shape)} and bias {list(head.bias.shape)}; the "
            f"checkpoint asks for [{hidden_size}] and []"
        )
    return head


@functools.partial(jax.jit, static_argnums=0)
def _reward(
    config: ModelConfig,
    variables: Any,
    head: Head,
    tokens: Int[Array, "1 seq"],
    length: Int[Array, ""],
) -> Float[Array, ""]:
    """What follows the last token is padding, which causal layers do not see."""
    states: Any = Transformer(config).apply(variables, tokens, method=Transformer.hidden_states)
    last = states.final[0, length - 1].astype(jnp.float32)  # [hidden]
    return jax.nn.sigmoid(jnp.dot(last, head.weight) + head.bias)
